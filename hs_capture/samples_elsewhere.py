"""A samples.jsonl in another folder than the one that is opened, so that its masks would be lost.

Only the one in the opened folder itself counts. With the folder above several outputs of
`extract`, or with one run inside an output, the captures would be there and their masks would not:
that is refused, with the folder to open. A file of this name that says nothing of the captures,
such as the input of an extract beside a dump directory, is somebody else's and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError, FormatError
from hs_capture.format.catalog import RUN_FILE, is_there
from hs_capture.samples import SAMPLES_FILE, iterate_samples

if TYPE_CHECKING:
    from hs_capture.store import CaptureStore

EXTRACT_FILE = "extract.json"
"""Marks the output of `hs-capture extract`, which always has a samples.jsonl (see extract/)."""

_NAMED_FOLDERS = 3


def refuse_samples_elsewhere(store: CaptureStore, positions: Iterable[int]) -> None:
    """Raise `ConfigError` if another folder has the samples of captures of `store`.

    `store` has no samples.jsonl in its own folder, and `positions` are those of the captures that
    would be read. Looked at are the folders between the store's and each capture, and all above it.
    """
    rids_in = _rids_by_folder(store, positions)
    if not rids_in:
        return
    if _is_output(store.path):
        raise ConfigError(
            f"{store.path} is an output of hs-capture extract and its {SAMPLES_FILE}, with the "
            "loss masks, is gone: put it back, or run the same extract again, which writes it anew"
        )
    below = sorted(set(_below(store.path, rids_in)))
    if below:
        named = ", ".join(map(str, below[:_NAMED_FOLDERS]))
        more = len(below) - _NAMED_FOLDERS
        others = f" and {more} more" if more > 0 else ""
        alone = len(below) == 1
        raise ConfigError(
            f"{store.path} has no {SAMPLES_FILE}, and the loss masks of captures here are in that "
            f"of {named}{others}: open {'that folder' if alone else 'each by itself'}, or put "
            f"{'its lines' if alone else 'the lines of all'} into {store.path / SAMPLES_FILE}"
        )
    # Where the folder really is: a store above a symbolic link to it has no captures of it.
    rids = {rid for some in rids_in.values() for rid in some}
    # One without the file has no masks, and is named for nothing, also if it is an output: but for
    # that of a single run, which is the output that the run was moved to.
    here = store.path.resolve()
    places = [a for a in here.parents if _has_file(a) or _has_run(a, here)]
    above = next((a for a in places if _tells_of(a, rids)), None)
    if above is not None:
        raise ConfigError(
            f"{store.path} has no {SAMPLES_FILE}, and the loss masks of captures here are in that "
            f"of {above}: open that folder, or copy the file into {store.path} to have these "
            "captures alone"
        )


def _rids_by_folder(store: CaptureStore, positions: Iterable[int]) -> dict[Path, set[str]]:
    """The rids of the captures, by the run that they are in, or by their folder outside of runs."""
    found: dict[tuple[Path, str], set[str]] = {}
    # Of paths only as many are made as there are folders; see format/catalog.py.
    for position in positions:
        catalog, entry = store.find_entry(position)
        inside = "" if catalog.run is not None else str(entry.file).rpartition("/")[0]
        found.setdefault((catalog.directory, inside), set()).add(entry.rid)
    return {directory / inside: rids for (directory, inside), rids in found.items()}


def _below(root: Path, rids_in: dict[Path, set[str]]) -> Iterator[Path]:
    """The topmost folder inside `root` that has samples of the captures, for each group of them."""
    for folder, rids in rids_in.items():
        between = [place for place in (folder, *folder.parents) if root in place.parents]
        told = next((place for place in reversed(between) if _tells_of(place, rids)), None)
        if told is not None:
            yield told


def _tells_of(folder: Path, rids: Collection[str]) -> bool:
    """Whether the samples.jsonl in `folder` has the sample of one of `rids`."""
    try:
        return any(sample.rid in rids for sample in iterate_samples(folder))
    except (FormatError, OSError):
        # None, or somebody else's file of this name, unless a mark says whose it is.
        return _is_output(folder)


def _has_file(folder: Path) -> bool:
    """Whether `folder` has a samples.jsonl, or may have one where that cannot be told."""
    try:
        return is_there(str(folder / SAMPLES_FILE))
    except OSError:
        return True


def _has_run(output: Path, run: Path) -> bool:
    """Whether `run` is the folder of a run directly in `output`, an output of extract."""
    return run.parent == output and (run / RUN_FILE).is_file() and _is_output(output)


def _is_output(folder: Path) -> bool:
    try:
        return (folder / EXTRACT_FILE).is_file()
    except OSError:
        return False
