"""How far captured states are from the reference."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from harness.reference import Reference
from hs_capture import Capture, NotCapturedError

# float32 sums in another order than transformers', through eight layers.
TOLERANCE = 1e-5


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return max|found - expected| / max|expected|; infinity where anything is not finite."""
    assert found.shape == expected.shape, f"{tuple(found.shape)} is not {tuple(expected.shape)}"
    error = float((found - expected).abs().max() / expected.abs().max())
    return error if error == error else float("inf")


def errors(
    capture: Capture,
    prompt: Sequence[int],
    reference: Reference,
    rows: tuple[int, int] | None = None,
) -> dict[str, float]:
    """Return the relative error of every tensor of a capture of ``prompt``, by stream name.

    ``rows`` limits the comparison to [start, stop), for captures that are not complete. Post-norm
    states are compared too where only pre-norm ones are stored: then it is the derived ones.
    """
    assert capture.input_ids.tolist() == list(prompt)
    start, stop = rows or (0, len(prompt))
    states = reference.states(prompt)
    aux = capture.aux_hidden_states(rows=rows)
    assert aux.shape[:2] == (stop - start, len(capture.layer_ids))
    assert aux.dtype == capture.dtype == torch.float32
    found = {
        f"layer.{layer_id}": relative_error(aux[:, column], states.layers[layer_id][start:stop])
        for column, layer_id in enumerate(capture.layer_ids)
    }
    if "pre_norm" in capture.metadata["final"]:
        pre_norm = capture.last_hidden_states("pre_norm", rows=rows)
        found["final.pre_norm"] = relative_error(pre_norm, states.pre_norm[start:stop])
    if capture.metadata["final"]:
        post_norm = capture.last_hidden_states("post_norm", rows=rows)
        found["final.post_norm"] = relative_error(post_norm, states.post_norm[start:stop])
    return found


def assert_exact(
    capture: Capture, prompt: Sequence[int], reference: Reference, layer_ids: Sequence[int]
) -> None:
    """Assert that a capture is complete, of these layers, and equal to the reference."""
    assert capture.complete
    assert capture.incomplete_reason is None
    assert capture.missing == []
    assert capture.num_tokens == len(prompt)
    assert capture.layer_ids == list(layer_ids)
    wrong = {
        name: error
        for name, error in errors(capture, prompt, reference).items()
        if error > TOLERANCE
    }
    assert not wrong, f"rid {capture.rid!r}: {wrong}"


def assert_cached(
    capture: Capture,
    prompt: Sequence[int],
    reference: Reference,
    layer_ids: Sequence[int],
    cached: int,
) -> None:
    """Assert that a capture lacks the first ``cached`` rows, says so, and has all others right."""
    if cached == 0:
        assert_exact(capture, prompt, reference, layer_ids)
        return
    assert not capture.complete
    assert capture.incomplete_reason == "prefix_cache"
    assert capture.missing == [(0, cached)]
    assert capture.num_tokens == len(prompt)
    assert capture.layer_ids == list(layer_ids)
    found = errors(capture, prompt, reference, rows=(cached, len(prompt)))
    assert max(found.values()) <= TOLERANCE, f"rid {capture.rid!r}: {found}"
    with pytest.raises(NotCapturedError, match="prefix_cache"):
        capture.aux_hidden_states(rows=(cached - 1, len(prompt)))
