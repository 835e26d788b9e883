"""One sample as every format gets it, read from its capture and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hs_capture.errors import FormatError
from hs_capture.samples import default_mask

if TYPE_CHECKING:
    from hs_capture.captured_request import Capture, FinalState
    from hs_capture.samples import Sample


@dataclass(frozen=True)
class TrainingSample:
    """The tensors of a sample of T tokens, K layers and hidden size H.

    `input_ids` and `loss_mask` are int64 [T]. `aux` is [T, K, H], layers ascending, and `final`
    [T, H], before or after the final norm as the format asked; both in the model's dtype.
    """

    id: str
    rid: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux: torch.Tensor
    final: torch.Tensor


def read_sample(
    capture: Capture, sample: Sample | None, layers: tuple[int, ...], state: FinalState
) -> TrainingSample:
    """The training sample in a complete `capture`; without a `sample` the loss mask is the default.

    Raises `FormatError` for a damaged capture, for a loss mask that does not fit it, and for values
    that are not finite.
    """
    tokens = capture.num_tokens
    if sample is None:
        loss_mask = torch.from_numpy(default_mask(tokens, capture.prompt_tokens))
    else:
        loss_mask = torch.from_numpy(sample.mask(tokens))
    with capture.held_open():
        input_ids = capture.input_ids
        aux = capture.aux_hidden_states(layers=layers)
        final = capture.last_hidden_states(state)
    for position, layer in enumerate(layers):
        _require_finite(aux[:, position], f"layer {layer}", capture)
    _require_finite(final, f"the {state} final state", capture)
    name = capture.rid if sample is None else sample.id
    return TrainingSample(name, capture.rid, input_ids, loss_mask, aux, final)


def _require_finite(states: torch.Tensor, what: str, capture: Capture) -> None:
    # The float8 types know neither isfinite nor arithmetic.
    wide = states.to(torch.float32) if states.dtype.itemsize == 1 else states
    if not torch.isfinite(wide).all():
        rows = (~torch.isfinite(wide)).any(1).nonzero().flatten()
        raise FormatError(
            f"{capture.path}: {what} is not finite in {len(rows)} of {len(states)} rows, "
            f"the first is row {int(rows[0])}; a loss on it would be NaN"
        )
