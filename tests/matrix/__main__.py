"""Run the releases one after the other, print the table and write it into the documentation.

A release that was right with this very wheel of hs-capture is not run again. The exit code is 1
when a release failed. With --generated the rows of generated tokens are compared instead, and
nothing is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.reference import Reference
from harness.tiny_model import build_tiny_model
from matrix import fidelity, generation, page
from matrix.overlay import overlay
from matrix.releases import RELEASES, Release

BUILD = Path(__file__).parents[2] / "build"
FOLDER = BUILD / "matrix"


def main(versions: Sequence[str]) -> int:
    """Run the named releases, or all of them."""
    (wheel,) = (BUILD / "wheel").glob("*.whl")
    plugin = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = build_tiny_model(FOLDER / "model")
    reference = Reference(model)
    for version in versions or RELEASES:
        if _result(version, plugin) is None:
            print(f"== SGLang {version}", flush=True)
            found = _run(RELEASES[version], model, reference)
            (FOLDER / version / "result.json").write_text(json.dumps({"plugin": plugin, **found}))
    results = {
        version: result
        for version in RELEASES
        if (result := _result(version, plugin, failed=True)) is not None
    }
    print(page.table(results))
    if len(results) == len(RELEASES):
        page.write("releases", page.table(results))
    return int(any("failure" in results[version] for version in versions or RELEASES))


def generated(versions: Sequence[str]) -> int:
    """Compare generated tokens with the named releases, or with all of them."""
    model = build_tiny_model(FOLDER / "model")
    reference = Reference(model)
    failed = 0
    for version in versions or RELEASES:
        release = RELEASES[version]
        site = overlay(release, FOLDER / version / "site")
        try:
            rows = generation.compare(
                release, site, model, reference, FOLDER / version / "generated"
            )
        except Exception:
            traceback.print_exc()
            failed += 1
        else:
            print(f"SGLang {version}: rows that are right: {rows}", flush=True)
    return int(failed > 0)


def _run(release: Release, model: Path, reference: Reference) -> dict[str, Any]:
    folder = FOLDER / release.sglang
    site = overlay(release, folder / "site")
    scratch = folder / "run"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        outcome = fidelity.compare(release, site, model, reference, scratch)
    except Exception as error:
        traceback.print_exc()
        return {"failure": str(error)[-4000:]}
    print(f"   {max(outcome.errors.values()):.1e} in {outcome.seconds:.0f} s", flush=True)
    return asdict(outcome)


def _result(version: str, plugin: str, failed: bool = False) -> dict[str, Any] | None:
    """Return what was found for this wheel; what failed only if asked for."""
    file = FOLDER / version / "result.json"
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    if found["plugin"] != plugin or ("failure" in found and not failed):
        return None
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("version", nargs="*", choices=[*RELEASES, []], help="default: all")
    parser.add_argument("--generated", action="store_true", help="compare generated tokens")
    arguments = parser.parse_args()
    sys.exit((generated if arguments.generated else main)(arguments.version))
