"""`hs-capture inspect`: what is in a store."""

from __future__ import annotations

import argparse
import sys

from hs_capture import arguments

SUMMARY = "what is in a store: a table, or a page with plots"

REFUSED = 2

_DESCRIPTION = """\
Say what is in a store: captures, lengths, sizes, incomplete ones by reason, and the norms and the
largest channels of the states of some captures. Counts are those of the index; token ids and states
are read of --sample complete captures alone, and 'hs-capture verify --all' reads everything.
Exit code 0: told; 2: there is no store, or one of what was read is damaged; 4: wrong usage;
130: interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--store", type=arguments.path, required=True, metavar="DIR", help="where the captures are"
    )
    parser.add_argument(
        "--html", type=arguments.path, metavar="FILE", help="write a page with plots as well"
    )
    parser.add_argument(
        "--sample",
        type=arguments.count,
        default=32,
        metavar="N",
        help="read ids and states of N complete captures, spread over the store (default: 32)",
    )
    parser.set_defaults(run=run_command)


def run_command(parsed: argparse.Namespace) -> int:
    """Print the table, write the page, and return the exit code."""
    from hs_capture.errors import HsCaptureError
    from hs_capture.format.atomic import write_atomically
    from hs_capture.overview.gather import gather
    from hs_capture.overview.page import to_html
    from hs_capture.overview.table import to_text
    from hs_capture.store import open_store

    try:
        overview = gather(open_store(parsed.store), parsed.sample)
        if parsed.html is not None:
            page = to_html(overview).encode("utf-8", "backslashreplace")
            write_atomically(parsed.html, page, 0o600)
    except (HsCaptureError, OSError) as error:
        print(f"hs-capture inspect: {error}", file=sys.stderr)
        return REFUSED
    print(to_text(overview))
    return REFUSED if overview.damaged else 0
