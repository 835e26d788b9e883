"""The command `hs-capture`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import hs_capture
from hs_capture import arguments
from hs_capture.drafter import command as drafter
from hs_capture.errors import ConfigError
from hs_capture.export import command as export
from hs_capture.extract import command as extract
from hs_capture.extract import drain_command, estimate_command
from hs_capture.extract.failure import INTERRUPTED
from hs_capture.overview import command as overview

if TYPE_CHECKING:
    from hs_capture.verify.report import Report

USAGE_ERROR = 4
"""Exit code for a command line that is not understood; lower ones are answers of verify."""

_DESCRIPTION = """\
Tell whether hidden states are captured and whether the files are right.
Exit code 0: fired, and what is there to be read is sound; 1: attached, nothing captured yet;
2: not attached; 3: captures damaged, or contradicted by the model's head; 4: wrong usage;
130: interrupted."""

_COMMANDS = {
    "verify": "did the hook fire, and are the files right?",
    "estimate": estimate_command.SUMMARY,
    "extract": extract.SUMMARY,
    "drain": drain_command.SUMMARY,
    "export": export.SUMMARY,
    "check-drafter": drafter.SUMMARY,
    "inspect": overview.SUMMARY,
}
"""What the commands do, by name."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which is an answer of verify.
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> int:
    """Run the command with `arguments` (default: those of the process); returns its exit code.

    `program` is the name in usage texts, where the command is not started as `hs-capture`. Wrong
    usage raises SystemExit with code 4, --help and --version with code 0. After Ctrl-C the code is
    130.
    """
    parser = _parser(program)
    parsed = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] | None = getattr(parsed, "run", None)
    if run is None:
        parser.error(f"give a command: {', '.join(_COMMANDS)}")
    try:
        return run(parsed)
    except KeyboardInterrupt:
        print(f"\nhs-capture {parsed.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser(program: str | None) -> _Parser:
    parser = _Parser(
        prog="hs-capture",
        usage=f"hs-capture [-h] [--version] {{{','.join(_COMMANDS)}}} ...",
        description="Capture hidden states from an SGLang server.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Capture itself is switched on by SGLANG_HS_DUMP_DIR in the server's environment.",
    )
    parser.add_argument(
        "--version", action="version", version=f"hs-capture {hs_capture.__version__}"
    )
    # argparse's own list has a line for the argument "command" above the commands.
    width = max(map(len, _COMMANDS))
    listed = "\n".join(f"{name:<{width}}  {what}" for name, what in _COMMANDS.items())
    parser.add_argument_group("commands", listed)
    commands = parser.add_subparsers(prog=parser.prog, help=argparse.SUPPRESS)
    _add_verify(commands, program)
    for name, add_arguments in (
        ("estimate", estimate_command.add_arguments),
        ("extract", extract.add_arguments),
        ("drain", drain_command.add_arguments),
        ("export", export.add_arguments),
        ("check-drafter", drafter.add_arguments),
        ("inspect", overview.add_arguments),
    ):
        command = commands.add_parser(name)
        command.set_defaults(command=name)
        add_arguments(command)
    return parser


def _add_verify(commands: argparse._SubParsersAction[_Parser], program: str | None) -> None:
    verify = commands.add_parser(
        "verify",
        prog=program,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "--dump-dir",
        type=arguments.path,
        metavar="DIR",
        help="the directory of the captures, or of one run (default: $SGLANG_HS_DUMP_DIR)",
    )
    amount = verify.add_mutually_exclusive_group()
    amount.add_argument(
        "--sample",
        type=arguments.count,
        default=32,
        metavar="N",
        help="read the newest N captures of each run (default: 32)",
    )
    amount.add_argument("--all", action="store_true", help="read all captures")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    head = verify.add_argument_group("proof by the model's own head")
    head.add_argument(
        "--model",
        type=arguments.path,
        metavar="PATH",
        help="the folder of the checkpoint: its final norm and lm_head over the stored final "
        "states have to say what the engine said",
    )
    witness = head.add_mutually_exclusive_group()
    witness.add_argument(
        "--server",
        metavar="URL",
        help="ask this server what it makes of the prompts; its requests are not captured "
        "(default: what extract has kept in the store)",
    )
    witness.add_argument(
        "--responses",
        type=arguments.path,
        metavar="FILE",
        help="saved answers of /generate at temperature 0, one JSON object a line",
    )
    verify.set_defaults(command="verify", run=_verify, fail=verify.error)


def _verify(parsed: argparse.Namespace) -> int:
    if parsed.model is None and (parsed.server or parsed.responses):
        parsed.fail("--server and --responses need --model")
    try:
        report = _report(parsed)
    except ConfigError as error:
        print(f"hs-capture verify: {error}", file=sys.stderr)
        return USAGE_ERROR
    _print(report, as_json=parsed.json)
    return report.verdict.exit_code


def _report(parsed: argparse.Namespace) -> Report:
    from hs_capture.verify.diagnosis import diagnose

    sample = None if parsed.all else parsed.sample
    if parsed.model is None:
        return diagnose(parsed.dump_dir, sample)
    from hs_capture.verify.by_head import by_head

    prove = by_head(parsed.model, parsed.server, parsed.responses, sample)
    return diagnose(parsed.dump_dir, sample, prove)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        import orjson

        text = orjson.dumps(report.to_object(), option=orjson.OPT_INDENT_2).decode()
    else:
        text = report.to_text()
    # Names of files and rids may hold anything; a narrow terminal encoding must not stop us.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


if __name__ == "__main__":
    sys.exit(main())
