"""The digest of what a file was made of is the one that docs/files.md describes."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from hs_capture import open_store
from hs_capture.export.formats import format_named
from hs_capture.export.jobs import Jobs
from hs_capture.export.origin import origin_of
from hs_capture.samples import Sample
from hs_capture.selection import select
from unit.export.stores import write_samples, write_store


@pytest.mark.parametrize(
    ("name", "sample", "tail"),
    [
        ("specforge", None, b""),
        ("specforge", Sample(0, "id-0", "r0", ((1, 2), (4, 6))), b'["id-0",[[1,2],[4,6]]]'),
        ("speculators", Sample(0, "id-0", "r0", ((1, 2), (4, 6))), b'["id-0",null]'),
    ],
)
def test_an_origin_is_made_of_the_trailer_and_the_sample(
    tmp_path: Path, name: str, sample: Sample | None, tail: bytes
) -> None:
    folder = write_store(tmp_path / "store", (6,))
    if sample is not None:
        write_samples(folder, sample)
    store = open_store(folder)
    (job,) = Jobs(store, select(store))
    (path,) = folder.rglob("*.hsc")
    expected = xxhash.xxh3_128_hexdigest(path.read_bytes()[-32:] + tail)
    assert origin_of(job, format_named(name)) == expected
