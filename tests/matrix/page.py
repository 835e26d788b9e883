"""The parts of docs/compatibility.md that are written by a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hs_capture.hooks.decode_obstacles import DECODE_OBSTACLES
from hs_capture.hooks.obstacles import OBSTACLES, OTHERS_OBSTACLES
from matrix.releases import RELEASES

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the releases; one that was not run yet has no numbers."""
    lines = [
        "| SGLang | transformers | captures | rows | largest relative error | embedding (-1) |",
        "|---|---|---|---|---|---|",
    ]
    for version, release in RELEASES.items():
        found = results.get(version)
        if found is None:
            cells = ["", "", "not run"]
        elif "failure" in found:
            cells = ["", "", "FAILED"]
        else:
            worst = max(found["errors"].values())
            cells = [str(found["captures"]), str(found["rows"]), f"{worst:.1e}"]
        embedding = "yes" if release.hands_out_embedding else "no, refused"
        lines.append(f"| {' | '.join([version, release.transformers, *cells, embedding])} |")
    return "\n".join(lines)


def refusals() -> str:
    """Return the list of the settings with which a server does not start, in its own words."""
    obstacles = (*OBSTACLES, *OTHERS_OBSTACLES, *DECODE_OBSTACLES)
    return "\n".join(f"- {obstacle.text}" for obstacle in obstacles)


def write(name: str, text: str) -> None:
    """Replace what stands between the markers `name` on the page."""
    page = PAGE.read_text()
    found = _between(name, page)
    PAGE.write_text(page[: found.start(1)] + text + page[found.end(1) :])


def written(name: str) -> str:
    """Return what stands between the markers `name` on the page."""
    return _between(name, PAGE.read_text()).group(1)


def _between(name: str, page: str) -> re.Match[str]:
    found = re.search(rf"<!-- begin {name} .*?-->\n(.*?)\n<!-- end {name} -->", page, re.DOTALL)
    if found is None:
        raise ValueError(f"{PAGE}: there are no markers for {name}")
    return found
