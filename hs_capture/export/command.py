"""`hs-capture export`: a store becomes the files of a trainer."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from hs_capture import arguments
from hs_capture.counted import count_text

if TYPE_CHECKING:
    from hs_capture.export.plan import Plan
    from hs_capture.export.run import Outcome

SUMMARY = "write the files that a trainer reads"

FAILED = 1
REFUSED = 2
INTERRUPTED = 130

_DESCRIPTION = """\
Write the complete captures of a store as the files that a trainer reads, with the norm, the layout
and the layer ids that it expects. Run it again after an interruption: what is there stays.
Exit code 0: all exported; 1: some captures could not be read; 2: refused, with the reason;
4: wrong usage; 130: interrupted."""

_SHOWN_FAILURES = 10
_MAX_WORKERS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--store", type=arguments.path, required=True, metavar="DIR", help="where the captures are"
    )
    parser.add_argument(
        "--format",
        required=True,
        metavar="NAME",
        help="specforge, speculators (0.9), speculators-v1 (0.4 to 0.7), modelopt or safetensors",
    )
    parser.add_argument(
        "--output",
        type=arguments.path,
        required=True,
        metavar="DIR",
        help="where the files go; created if it is missing",
    )
    parser.add_argument(
        "--layers",
        type=arguments.layer_ids,
        metavar="IDS",
        help="only these of the captured layers, as in 1,29,57 (default: all)",
    )
    parser.add_argument(
        "--final",
        choices=("pre_norm", "post_norm"),
        help="the final state, where the format leaves a choice",
    )
    parser.add_argument(
        "--rids", metavar="PATTERN", help="only captures whose rid matches this shell pattern"
    )
    parser.add_argument(
        "--weights-version",
        type=arguments.natural,
        metavar="N",
        help="only captures of these weights, where they were changed while the server ran",
    )
    parser.add_argument(
        "--workers",
        type=arguments.count,
        default=min(_MAX_WORKERS, os.cpu_count() or 1),
        metavar="N",
        help=f"processes that write (default: one a core, at most {_MAX_WORKERS})",
    )
    parser.set_defaults(run=run_command)


def run_command(parsed: argparse.Namespace) -> int:
    """Export, say what was done, and return the exit code."""
    import torch

    from hs_capture.errors import HsCaptureError
    from hs_capture.export.formats import format_named
    from hs_capture.export.plan import Wish, make_plan
    from hs_capture.export.progress import Progress
    from hs_capture.export.run import run
    from hs_capture.store import open_store

    # A sample is copied, not computed: more threads would only wait for each other.
    torch.set_num_threads(1)
    try:
        wish = Wish(parsed.layers, parsed.final, parsed.rids, parsed.weights_version)
        plan = make_plan(open_store(parsed.store), format_named(parsed.format), wish)
        outcome = run(plan, parsed.output, parsed.workers, Progress())
    except (HsCaptureError, OSError) as error:
        print(f"hs-capture export: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("\nhs-capture export: interrupted; run it again to go on", file=sys.stderr)
        return INTERRUPTED
    print("\n".join(_summary(plan, outcome)))
    return FAILED if outcome.failed else 0


def _summary(plan: Plan, outcome: Outcome) -> list[str]:
    sidecar = plan.sidecar
    lines = [
        (
            f"{plan.format.trainer}: {count_text(outcome.written, 'sample')} written "
            f"({count_text(outcome.tokens, 'token')}, "
            f"{outcome.bytes / 2**20:,.1f} MiB), {outcome.kept} already there"
        ),
        (
            f"layers: outputs of {_ids(sidecar.layer_ids)}; as {plan.format.trainer} counts: "
            f"{_ids(sidecar.trainer_layer_ids)}"
        ),
        f"final state: {sidecar.final_state}, {sidecar.final_state_origin}",
        f"loss mask: {sidecar.loss_mask}",
    ]
    lines += [f"left out: {count} {why}" for why, count in sorted(plan.left_out.items())]
    lines += [f"failed: {rid}: {cause}" for rid, cause in outcome.failed[:_SHOWN_FAILURES]]
    if len(outcome.failed) > _SHOWN_FAILURES:
        lines.append(f"failed: {len(outcome.failed) - _SHOWN_FAILURES} more")
    return lines


def _ids(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))
