"""`hs-capture estimate`: how large and how long, before anything runs."""

from __future__ import annotations

import argparse
import sys

from hs_capture import arguments
from hs_capture.counted import count_text
from hs_capture.extract.command import add_input_arguments
from hs_capture.extract.failure import FAILED, told
from hs_capture.extract.sizes import duration, human

SUMMARY = "say what an extraction will need: disk, memory, time"

_DESCRIPTION = """\
Say how many samples and tokens an input has, how many bytes their captures will take, how much
room the dump directory needs, and how long it will take. Reads the input and the model's
config.json, and nothing else.
Exit code 0: told; 1: told, but the input has rows and none of them is a sample; 2: cannot be told,
with the reason; 4: wrong usage; 130: interrupted."""

_AUX_LAYERS = 3
_FINAL_STATES = {"pre_norm": 1, "post_norm": 1, "both": 2, "none": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_input_arguments(parser)
    parser.add_argument(
        "--model",
        type=arguments.path,
        required=True,
        metavar="DIR",
        help="the folder of the model, or its config.json",
    )
    parser.add_argument(
        "--layers",
        type=arguments.natural,
        default=_AUX_LAYERS,
        metavar="N",
        help="number of captured layers (default: 3)",
    )
    parser.add_argument(
        "--final",
        choices=tuple(_FINAL_STATES),
        default="pre_norm",
        help="SGLANG_HS_FINAL (default: pre_norm)",
    )
    parser.add_argument(
        "--concurrency",
        type=arguments.count,
        default=32,
        metavar="N",
        help="requests in flight at a time (default: 32)",
    )
    parser.add_argument(
        "--tokens-per-second",
        type=arguments.positive,
        metavar="N",
        help="prompt tokens that the servers compute in a second",
    )
    parser.add_argument(
        "--drain-gb-per-second",
        type=arguments.positive,
        metavar="N",
        help="speed at which captures go to durable storage, 1 GB being 1e9 bytes",
    )
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    with told("estimate"):
        from hs_capture.extract.chat import ChatTokenizer
        from hs_capture.extract.estimate import estimate, measure, read_shape
        from hs_capture.extract.source import open_source

        shape = read_shape(parsed.model)
        source = open_source(parsed.input)
        tokenizer = parsed.tokenizer and ChatTokenizer(
            parsed.tokenizer, trust_remote_code=parsed.trust_remote_code
        )
        amount = measure(source, tokenizer, parsed.shard, _tell_bad)
        states = parsed.layers + _FINAL_STATES[parsed.final]
        drain = parsed.drain_gb_per_second and parsed.drain_gb_per_second * 1e9
        found = estimate(amount, shape, states, parsed.concurrency, parsed.tokens_per_second, drain)
    requests = count_text(parsed.concurrency, "request")
    lines = [
        ("samples", f"{amount.samples:,}"),
        ("bad rows", f"{amount.bad:,}"),
        ("tokens", f"{amount.tokens:,}, the longest sample {amount.longest:,}"),
        ("states", f"{states} of {shape.hidden_size} x {shape.dtype} a token"),
        ("raw", human(found.raw_bytes)),
        ("stored", f"{human(found.stored_bytes)} expected"),
        ("in flight", f"{human(found.in_flight_bytes)} at {requests}"),
        ("dump directory", f"{human(found.tmpfs_bytes)} for the server never to wait"),
    ]
    if found.seconds is not None:
        lines.append(("time", duration(found.seconds)))
    width = max(len(name) for name, _ in lines)
    print("\n".join(f"{name:<{width}}  {value}" for name, value in lines))
    return FAILED if amount.bad and not amount.samples else 0


def _tell_bad(number: int, text: str) -> None:
    from hs_capture.extract.failures import SHOWN

    if number <= SHOWN:
        print(f"bad row: {text}", file=sys.stderr)
    elif number == SHOWN + 1:
        print("bad row: more", file=sys.stderr)
