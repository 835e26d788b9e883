"""What SGLang answers to a prompt, as far as it tells of the model's own output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hs_capture.errors import FormatError


@dataclass(frozen=True)
class Answer:
    """One answer of `/generate`.

    `next_token` is the first generated token, None where the answer does not tell. `logprobs` are
    the last tokens of the prompt, in order, each with the natural logarithm of its probability
    after the tokens before it, None where that was not asked for.
    """

    rid: str | None
    next_token: int | None
    logprobs: tuple[tuple[int, float | None], ...]


def answer_of(value: object, place: str) -> Answer:
    """The answer in an already parsed JSON value of SGLang.

    `place` starts the message of the `FormatError` that is raised for anything else.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{place}: expected an answer of /generate, a JSON object")
    meta = value.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    rid = value.get("rid", meta.get("id"))
    try:
        told = [(int(item[1]), item[0]) for item in meta.get("input_token_logprobs") or ()]
        logprobs = tuple((token, None if lp is None else float(lp)) for token, lp in told)
        next_token = _next_token(value, meta)
    except (TypeError, ValueError, LookupError) as error:
        raise FormatError(
            f"{place}: output_ids or a list of logprobs is not as SGLang writes it: {error}"
        ) from error
    return Answer(rid if isinstance(rid, str) else None, next_token, logprobs)


def _next_token(value: dict[str, Any], meta: dict[str, Any]) -> int | None:
    if value.get("output_ids"):
        return int(value["output_ids"][0])
    generated = meta.get("output_token_logprobs")
    return int(generated[0][1]) if generated else None
