"""run.json of the run that is being captured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hs_capture.format.run import NormWeight, RunInfo


class RunFile:
    """Keeps run.json, which gets one more norm with each change of the weights, and notes."""

    def __init__(self, path: Path, mode: int, info: RunInfo) -> None:
        """Write `info` to `path`.

        Raises:
            OSError: it could not be written.
        """
        self._path = path
        self._mode = mode
        self._info = info
        self._write()

    def add_norm(self, weights_version: int, norm: NormWeight) -> None:
        """Write the norm of one more version.

        Raises:
            OSError: it could not be written; the next one that can be brings this one too.
        """
        norms = {**self._info.norms, str(weights_version): norm}
        self._info = replace(self._info, norms=norms)
        self._write()

    def add_note(self, text: str) -> None:
        """Write one more thing that a user should know about this run.

        Raises:
            OSError: it could not be written; the next change that can be brings it too.
        """
        self._info = replace(self._info, notes=(*self._info.notes, text))
        self._write()

    def _write(self) -> None:
        self._info.write(self._path, mode=self._mode)


def norm_weight(norm: Any) -> NormWeight:
    """Return SGLang's RMSNorm as it is stored."""
    weight = norm.weight.detach().cpu().contiguous()
    dtype = str(weight.dtype).removeprefix("torch.")
    carrier = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
    return NormWeight.of(carrier.numpy(), dtype, norm.variance_epsilon)
