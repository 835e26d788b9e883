"""The largest relative error of each family of models, from what tests/modes/test_others.py left.

pytest tests/modes/test_others.py --basetemp=FOLDER
PYTHONPATH=tests python tests/family_errors.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness.compare import errors
from harness.reference import Reference
from hs_capture import open_store


def main(folder: Path) -> None:
    """Compare all complete captures again, and print a line a class."""
    worst: dict[str, float] = {}
    for model in sorted(folder.glob("test_*[0-9]/tiny")):
        dump_dir = model.parent / "dump"
        if not dump_dir.exists():
            continue
        (family,) = json.loads((model / "config.json").read_text())["architectures"]
        reference = Reference(model)
        for capture in open_store(dump_dir):
            if capture.complete:
                found = errors(capture, capture.input_ids.tolist(), reference)
                worst[family] = max(worst.get(family, 0.0), *found.values())
    for family, error in sorted(worst.items()):
        print(f"{family} {error:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
