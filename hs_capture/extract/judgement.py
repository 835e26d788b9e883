"""Is a capture what was asked for, and fit to be learned from?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hs_capture.format.container import ContainerReader
from hs_capture.format.metadata import INPUT_IDS, CaptureMetadata
from hs_capture.soundness import examine

if TYPE_CHECKING:
    from numpy.typing import NDArray


def problem_of(path: str, input_ids: NDArray[np.int64]) -> str | None:
    """What is wrong with the capture at `path` as one of the prompt `input_ids` [T]; None if it is
    right: sound (see `hs_capture.soundness`), complete, and of these tokens.

    Raises `FormatError` for a damaged file.
    """
    with ContainerReader(path) as reader:
        metadata = CaptureMetadata.from_object(reader.metadata, f"{path}: metadata")
        captured = reader.read(INPUT_IDS)[: metadata.num_tokens]
    if len(captured) != len(input_ids):
        return f"the server computed {len(captured)} tokens of a prompt of {len(input_ids)}"
    (wrong,) = np.nonzero(captured != input_ids)
    if len(wrong):
        place = wrong[0]
        return f"token {place} is {captured[place]} in the capture, not {input_ids[place]}"
    if not metadata.complete:
        return "the capture is incomplete"
    examined = examine(path)
    return None if examined is None else examined.problem
