"""Conversations whose generated tokens are captured, and what their captures have to hold."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.client import generate
from harness.compare import TOLERANCE, assert_exact, errors
from harness.reference import Reference
from hs_capture import Capture, CaptureStore
from hs_capture.intervals import union


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


@dataclass(frozen=True)
class Turn:
    """One request of a chat: what was sent, what came back, how much of it was cached."""

    rid: str
    prompt: list[int]
    answer: list[int]
    cached: int


def chat(url: str, name: str, first: Sequence[int]) -> list[Turn]:
    """Hold a chat of which each turn repeats all of the earlier ones, to their last tokens.

    Answers end by their length, by a stop token, and after one token. To know a token to stop at,
    the answer is asked for before under the rid ``NAME-N-whole``, in a cache of its own.
    """
    turns: list[Turn] = []
    tokens = [*first]
    for number, (count, stops) in enumerate(((9, False), (20, True), (1, False), (20, True))):
        rid = f"{name}-{number}"
        sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        if stops:
            whole = generate(url, tokens, f"{rid}-whole", count, extra_key=rid)["output_ids"]
            at = next(i for i, token in enumerate(whole) if i > 3 and token not in whole[:i])
            # Where the end of a text is ignored, so are tokens to stop at.
            sampling |= {"stop_token_ids": [whole[at]], "ignore_eos": False}
        answer = generate(url, tokens, rid, sampling_params=sampling)
        said = list(answer["output_ids"])
        assert not stops or said == whole[: at + 1]
        turns.append(Turn(rid, tokens, said, answer["meta_info"]["cached_tokens"]))
        tokens = [*tokens, *said, 3 + number]
    return turns


def assert_chat(
    store: CaptureStore, turns: Sequence[Turn], reference: Reference, layer_ids: Sequence[int]
) -> None:
    """Assert that each turn of a `chat` is complete and right, and has from others what was cached.

    The cache has a turn's prompt and answer, with or without the token that ended it.
    """
    before = 0
    for turn in turns:
        assert before <= turn.cached <= before + 1
        capture = store[turn.rid]
        assert_followed(capture, turn.prompt, turn.answer, reference, layer_ids)
        sources = [(s["start"], s["stop"]) for s in capture.metadata["sources"]]
        assert union(sources) == ([(0, turn.cached)] if turn.cached else [])
        before = len(turn.prompt) + len(turn.answer) - 1


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
