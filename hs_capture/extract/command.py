"""`hs-capture extract`: a file of prompts becomes a store of captures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture import arguments
from hs_capture.counted import count_text
from hs_capture.extract.failure import FAILED, INTERRUPTED, REFUSED, explain, told
from hs_capture.extract.sizes import duration, human

if TYPE_CHECKING:
    from hs_capture.extract.plan import Summary

SUMMARY = "prefill every sample of an input file, and collect the captures"

_DESCRIPTION = """\
Send every sample of an input file to SGLang servers that capture, check each capture, and move it
to a store on durable storage, with the loss mask of its sample. Run it again after an interruption
or a crash: only what is missing is done.
Exit code 0: every sample is in the store; 1: some failed; 2: it cannot go on, with the reason;
4: wrong usage; 130: interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_input_arguments(parser)
    parser.add_argument(
        "--server",
        action="append",
        required=True,
        metavar="URL",
        help="a server on this host, such as http://127.0.0.1:30000; may be given several times",
    )
    parser.add_argument(
        "--dump-dir",
        type=arguments.path,
        action="append",
        required=True,
        metavar="DIR",
        help="the SGLANG_HS_DUMP_DIR of the servers: one for all, or one for each --server",
    )
    parser.add_argument(
        "--output", type=arguments.path, required=True, metavar="DIR", help="the store to fill"
    )
    parser.add_argument(
        "--concurrency",
        type=arguments.count,
        default=32,
        metavar="N",
        help="requests in flight on each server (default: 32)",
    )
    parser.add_argument(
        "--retries",
        type=arguments.natural,
        default=3,
        metavar="N",
        help="further attempts at a sample whose capture fails (default: 3)",
    )
    parser.add_argument(
        "--capture-timeout",
        type=arguments.positive,
        default=120.0,
        metavar="SECONDS",
        help="longest wait for a capture after the server's answer (default: 120)",
    )
    parser.add_argument(
        "--server-timeout",
        type=arguments.positive,
        default=1800.0,
        metavar="SECONDS",
        help="longest wait for a server that is gone to come back (default: 1800)",
    )
    parser.add_argument(
        "--request-timeout",
        type=arguments.positive,
        default=600.0,
        metavar="SECONDS",
        help="longest wait for the answer to a request; then the server counts as gone "
        "(default: 600)",
    )
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    parser.set_defaults(run=_run)


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe what names the samples."""
    parser.add_argument(
        "--input",
        type=arguments.path,
        required=True,
        metavar="FILE",
        help="JSON lines, Parquet, or the folder of a saved data set; columns input_ids and "
        "loss_mask, or messages, conversations or text",
    )
    parser.add_argument(
        "--tokenizer",
        type=arguments.path,
        metavar="DIR",
        help="the folder of the model's tokenizer, for messages, conversations and text",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="let the tokenizer run code from its folder",
    )
    parser.add_argument(
        "--shard",
        type=arguments.shard,
        default=(0, 1),
        metavar="I/N",
        help="only each N-th sample, from sample I on, as in 0/8 to 7/8",
    )


def _run(parsed: argparse.Namespace) -> int:
    with told("extract"):
        if len(parsed.dump_dir) not in (1, len(parsed.server)):
            print(
                "hs-capture extract: give one --dump-dir, or one for each --server", file=sys.stderr
            )
            return 4

        from hs_capture.extract.extraction import Effort
        from hs_capture.extract.session import Session

        directories: list[Path] = parsed.dump_dir
        if len(directories) == 1:
            directories = directories * len(parsed.server)
        effort = Effort(
            parsed.concurrency,
            parsed.retries,
            parsed.capture_timeout,
            parsed.server_timeout,
            parsed.fail_fast,
            parsed.request_timeout,
        )
        session = Session(
            parsed.input,
            parsed.tokenizer,
            parsed.shard,
            list(zip(parsed.server, directories, strict=True)),
            parsed.output,
            effort,
            trust_remote_code=parsed.trust_remote_code,
        )
        summary, error = session.run()
    print(_words(summary, parsed.output))
    if error is not None:
        print(f"hs-capture extract: {explain(error)}", file=sys.stderr)
        return FAILED if parsed.fail_fast and summary.failed else REFUSED
    if summary.state == "interrupted":
        print("hs-capture extract: interrupted; run it again to go on", file=sys.stderr)
        return INTERRUPTED
    return FAILED if summary.failed else 0


def _words(summary: Summary, output: Path) -> str:
    ratio = summary.raw_bytes / summary.stored_bytes if summary.stored_bytes else 1.0
    verb = "is" if summary.captured == 1 else "are"
    return (
        f"{summary.captured:,} of {count_text(summary.samples, 'sample')} {verb} in {output}: "
        f"{count_text(summary.tokens, 'token')}, {human(summary.stored_bytes)} "
        f"(ratio {ratio:.2f}), {summary.failed:,} failed, {duration(summary.seconds)} in "
        f"{count_text(summary.sessions, 'session')}"
    )
