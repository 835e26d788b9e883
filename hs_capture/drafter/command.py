"""`hs-capture check-drafter`: is a drafter served what it was trained on?"""

from __future__ import annotations

import argparse
import sys

from hs_capture import arguments

SUMMARY = "would SGLang feed a drafter what it was trained on?"

DIFFERS = 1
REFUSED = 2

_DESCRIPTION = """\
Resolve the layer ids in a draft model's config as a release of SGLang would, and compare them with
the layers in a store; compare hidden size, dtype, count and vocabulary too. For EAGLE-3 on models
of the DeepSeek-V2 family.
Exit code 0: all match; 1: something differs; 2: cannot be told, as when the config is a target
model's; 4: wrong usage; 130: interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--store", type=arguments.path, required=True, metavar="DIR", help="what it was trained on"
    )
    parser.add_argument(
        "--draft-config",
        type=arguments.path,
        required=True,
        metavar="FILE",
        help="the draft model's config.json, or its folder",
    )
    parser.add_argument(
        "--layers",
        type=arguments.layer_ids,
        metavar="IDS",
        help="those that it was trained on, where export was given --layers (default: all)",
    )
    parser.add_argument(
        "--sglang-version",
        metavar="V",
        help="the release that will serve it (default: the one that captured)",
    )
    parser.set_defaults(run=run_command)


def run_command(parsed: argparse.Namespace) -> int:
    """Compare, say what was found, and return the exit code."""
    from hs_capture.drafter.check import check, only_layers, the_run
    from hs_capture.drafter.config import DraftConfig
    from hs_capture.errors import HsCaptureError
    from hs_capture.store import open_store

    try:
        run = the_run(open_store(parsed.store).runs)
        if parsed.layers is not None:
            run = only_layers(run, parsed.layers)
        draft = DraftConfig.read(parsed.draft_config)
        findings = check(run, draft, parsed.sglang_version or run.sglang_version)
    except (HsCaptureError, OSError) as error:
        print(f"hs-capture check-drafter: {error}", file=sys.stderr)
        return REFUSED
    words = {True: "ok", False: "differs", None: "note"}
    for finding in findings:
        print(f"{words[finding.matches]:<9}{finding.name:<13}{finding.text}")
    return DIFFERS if any(finding.matches is False for finding in findings) else 0
