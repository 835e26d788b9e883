"""How far captured states are from the reference."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from harness.reference import Reference
from hs_capture import Capture, NotCapturedError
from hs_capture.intervals import subtract, union

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
    states are compared too where only pre-norm ones are stored: then it is the derived ones. Where
    the choice of an expert is a tie, a capture may be as right with the other one.
    """
    assert capture.input_ids.tolist() == list(prompt)
    found = _errors(capture, prompt, reference, rows)
    for tie in reference.states(prompt).ties:
        if max(found.values()) > TOLERANCE:
            other = _errors(capture, prompt, reference.choosing_otherwise(tie), rows)
            found = min(found, other, key=lambda errors: max(errors.values()))
    return found


def _errors(
    capture: Capture, prompt: Sequence[int], reference: Reference, rows: tuple[int, int] | None
) -> dict[str, float]:
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


def assert_linked(
    capture: Capture,
    prompt: Sequence[int],
    reference: Reference,
    layer_ids: Sequence[int],
    sources: Sequence[tuple[int, int, str]],
    missing: Sequence[tuple[int, int]] = (),
) -> None:
    """Assert that a capture has rows [start, stop) in the files of these rids, and all are right.

    Rows that are ``missing`` were in the cache and are nobody's; all others are in its own file.
    """
    metadata = capture.metadata
    assert [(s["start"], s["stop"], s["rid"]) for s in metadata["sources"]] == list(sources)
    not_own = union([*((start, stop) for start, stop, _ in sources), *missing])
    assert metadata["missing"] == [list(rows) for rows in not_own]
    assert metadata["complete"] == (not not_own)
    if not missing:
        assert_exact(capture, prompt, reference, layer_ids)
        return
    assert (capture.complete, capture.incomplete_reason) == (False, "prefix_cache")
    assert capture.missing == list(missing)
    assert capture.num_tokens == len(prompt)
    assert capture.layer_ids == list(layer_ids)
    for rows in subtract((0, len(prompt)), missing):
        found = errors(capture, prompt, reference, rows=rows)
        assert max(found.values()) <= TOLERANCE, f"rid {capture.rid!r}, rows {rows}: {found}"
    for start, stop in missing:
        with pytest.raises(NotCapturedError, match="prefix_cache"):
            capture.aux_hidden_states(rows=(stop - 1, min(stop + 1, len(prompt))))
        with pytest.raises(NotCapturedError, match="prefix_cache"):
            capture.aux_hidden_states(rows=(max(start - 1, 0), start + 1))
