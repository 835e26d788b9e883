"""What a session keeps in mind of a pass whose capture fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hs_capture.capture.batch import Batch, Request, batch_of
from hs_capture.hooks.session import Session


class FullDevice:
    """A tap whose copies have begun to read when there is no memory for the others."""

    def capture(self, batch: Batch, states: list[torch.Tensor]) -> None:
        raise torch.OutOfMemoryError(f"{batch.total_rows} rows of {len(states)} tensors")


def test_buffers_that_are_used_again_are_protected_though_their_capture_failed() -> None:
    batch = batch_of([(Request(0, "a", np.arange(3), 0), 0, 3)])
    session: Any = SimpleNamespace(
        _batch=batch,
        _tap=FullDevice(),
        _final=("pre_norm",),
        _follows_decode=False,
        _reused=False,
        _taken=False,
    )
    with pytest.raises(torch.OutOfMemoryError, match="3 rows of 1 tensors"):
        Session._receive(session, [torch.zeros(3, 4)], torch.zeros(3, 4), reused=True)
    assert session._reused
    assert not session._taken
