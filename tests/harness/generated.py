"""Conversations whose generated tokens are captured, and what their captures have to hold."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.client import generate
from harness.compare import TOLERANCE, assert_exact, errors
from harness.reference import Reference
from hs_capture import Capture


@dataclass(frozen=True)
class Talk:
    """One request: a prompt, and the sampling parameters of SGLang."""

    rid: str
    prompt: Sequence[int]
    sampling: dict[str, Any]


def answers(url: str, talks: Sequence[Talk], at_once: int, **fields: Any) -> dict[str, list[int]]:
    """Send all, `at_once` at a time; return the tokens that the server answered with, by rid."""
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(
            lambda talk: generate(
                url, talk.prompt, talk.rid, sampling_params=talk.sampling, **fields
            ),
            talks,
        )
        return {
            talk.rid: list(answer["output_ids"]) for talk, answer in zip(talks, found, strict=True)
        }


def assert_followed(
    capture: Capture,
    prompt: Sequence[int],
    answer: Sequence[int],
    reference: Reference,
    layer_ids: Sequence[int],
) -> None:
    """Assert that a capture is complete and right for a prompt and all tokens that ran behind it.

    The last token of the answer is never put into the model.
    """
    assert capture.prompt_tokens == len(prompt)
    assert_exact(capture, [*prompt, *answer[:-1]], reference, layer_ids)


def assert_rows(
    capture: Capture, tokens: Sequence[int], reference: Reference, missing: list[tuple[int, int]]
) -> None:
    """Assert that exactly these rows of a capture of `tokens` are missing, and the others right."""
    assert capture.num_tokens == len(tokens)
    assert capture.missing == missing
    start = 0
    for stop, after in [*missing, (len(tokens), len(tokens))]:
        if start < stop:
            found = errors(capture, tokens, reference, rows=(start, stop))
            assert max(found.values()) <= TOLERANCE, f"rid {capture.rid!r}: {found}"
        start = after
