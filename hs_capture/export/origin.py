"""What a sample's file was made of, in a digest: by it a later export knows what has changed since.

A path alone does not say it: another run has captures under the same names, and samples.jsonl may
get other loss masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import xxhash

from hs_capture.format.footer import read_trailer

if TYPE_CHECKING:
    from hs_capture.export.formats import Format
    from hs_capture.export.jobs import Job


def origin_of(job: Job, format_: Format) -> str:
    """The digest for the file of `job`: of its capture, its name and its loss mask where it is in.

    Of the capture only the end is read, with the checksum of its metadata and of all its checksums.
    That covers its run, the default loss mask, and which requests of the run have linked rows.
    Raises `FileNotFoundError` when the capture is gone.
    """
    digest = xxhash.xxh3_128(read_trailer(job.capture.file))
    if job.sample is not None:
        mask = job.sample.loss_mask if format_.masks_in_files else None
        digest.update(orjson.dumps([job.sample.id, mask]))
    return digest.hexdigest()
