"""One sample on its way from a capture to a temporary file; what a worker process does."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hs_capture.export.formats import Context, format_named
from hs_capture.export.origin import origin_of
from hs_capture.export.sample import read_sample

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from hs_capture.export.jobs import Job
    from hs_capture.export.plan import Plan


@dataclass(frozen=True)
class Written:
    """A durable temporary file, and the digest of what it was made of (see `origin_of`)."""

    temporary: str
    origin: str


@dataclass(frozen=True)
class Task:
    """Write the sample of `job` to `temporary`, and return once that is durable.

    Raises `HsCaptureError` when the capture cannot be read or does not fit the plan, and `OSError`
    when the file cannot be written; then there is no file.
    """

    job: Job
    format_name: str
    context: Context
    temporary: str

    @classmethod
    def of(cls, plan: Plan, job: Job, output: Path) -> Self:
        """The task for one job of a plan."""
        return cls(job, plan.format.name, plan.context, f"{output}/.part-{job.number}.tmp")

    def __call__(self) -> Written:
        format_ = format_named(self.format_name)
        # Before the capture is read: if it is replaced meanwhile, the next export writes it again.
        origin = origin_of(self.job, format_)
        self.context.require_same(self.job.capture)
        sample = read_sample(
            self.job.capture, self.job.sample, self.context.layer_ids, self.context.state
        )
        try:
            format_.write(self.temporary, sample, self.context)
            with open(self.temporary, "rb") as file:
                os.fsync(file.fileno())
        except Exception as error:
            self._remove()
            raise self._explained(error) from error
        except BaseException:
            self._remove()
            raise
        return Written(self.temporary, origin)

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.temporary)

    def _explained(self, error: Exception) -> OSError:
        # torch and safetensors have errors of their own for a file system that is full.
        if isinstance(error, OSError):
            return error
        left = shutil.disk_usage(os.path.dirname(self.temporary)).free
        return OSError(
            errno.EIO,
            f"cannot be written, {left:,} bytes are free there: {error}",
            self.temporary,
        )
