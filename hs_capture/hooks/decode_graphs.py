"""What decode graphs leave: our Python runs when SGLang records one, not when it is replayed.

While a graph is recorded the states are copied into buffers of ours, by operations that become part
of it. A replay so leaves the states of its batch there, until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def _is_recording() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class DecodeGraphs:
    """One set of buffers for the graphs of all batch sizes.

    They take (layers + 2 final states) x (requests of the largest graph) x (bytes of a state) of
    device memory: 37 MB for 3 layers of 7,168 bfloat16 elements and 512 requests.
    """

    def __init__(self, is_recording: Callable[[], bool] = _is_recording) -> None:
        """`is_recording` tells whether operations go into a graph now."""
        self._is_recording = is_recording
        self._buffers: list[torch.Tensor] | None = None
        self._recorded = False
        self._whole = True

    def record(self, token_ids: torch.Tensor, states: Sequence[torch.Tensor]) -> None:
        """Copy the tokens [rows] and states [rows, H] of a pass, if it is being recorded.

        SGLang begins with the largest size, and runs each once or twice before it is recorded. The
        first of these passes makes the buffers, so that they are ordinary memory.

        Raises:
            ValueError: a later size is larger; nothing is taken from any graph then.
        """
        tensors = [token_ids.unsqueeze(1), *states]
        rows = max(map(len, tensors))
        fits = self._buffers is not None and rows <= len(self._buffers[0])
        if not fits and not self._recorded:
            self._buffers = [tensor.new_empty(rows, tensor.shape[1]) for tensor in tensors]
        if not self._is_recording():
            return
        if self._buffers is None or rows > len(self._buffers[0]):
            self._whole = False
            raise ValueError(f"a decode graph of {rows} requests is recorded after a smaller one")
        self._recorded = True
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer[: len(tensor)].copy_(tensor)

    def replayed(self) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        """Return tokens and states of the last replay, its padding and older rows behind them.

        None if no graph leaves any.
        """
        if self._buffers is None or not self._recorded or not self._whole:
            return None
        token_ids, *states = self._buffers
        return token_ids.squeeze(1), states
