"""Input rows become prompts: token ids, and which of them a drafter is to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hs_capture.samples import Runs, runs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hs_capture.extract.chat import ChatTokenizer
    from hs_capture.extract.source import Row

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}
_COLUMNS = "input_ids, messages, conversations or text"


class RowError(ValueError):
    """A row cannot become a prompt; the message says why."""


@dataclass(frozen=True)
class Prompt:
    """One sample to be captured; `place` is where the input has it, `input_ids` is int64 [T]."""

    number: int
    place: str
    id: str
    input_ids: NDArray[np.int64]
    loss_mask: Runs


def prompt_of(row: Row, tokenizer: ChatTokenizer | None) -> Prompt:
    """The prompt of a row, from the first of its columns that is one of `input_ids`, `messages`,
    `conversations` and `text`.

    Without a `loss_mask` column, token ids and texts count as a whole. Raises `RowError`.
    """
    columns = row.columns
    if columns is None:
        raise RowError(str(row.problem))
    ids, mask = _tokens(columns, tokenizer)
    if not len(ids):
        raise RowError("the sample is empty: it has no token")
    given = columns.get("loss_mask")
    if given is not None:
        mask = _loss_mask(given, len(ids))
    name = columns.get("id")
    identity = str(row.number) if name is None else str(name)
    return Prompt(row.number, row.place, identity, ids, runs_of(mask))


def check_ids(prompt: Prompt, vocab_size: int) -> None:
    """Raise `RowError` for a token id that the model does not have."""
    wrong = np.flatnonzero((prompt.input_ids < 0) | (prompt.input_ids >= vocab_size))
    if len(wrong):
        raise RowError(
            f"token {wrong[0]} is {prompt.input_ids[wrong[0]]}, "
            f"the model has the ids 0 to {vocab_size - 1}"
        )


def _tokens(
    columns: dict[str, Any], tokenizer: ChatTokenizer | None
) -> tuple[NDArray[np.int64], Sequence[int] | NDArray[Any]]:
    if columns.get("input_ids") is not None:
        ids = _ids(columns["input_ids"])
        return ids, np.ones(len(ids), np.int8)
    chat = columns.get("messages") or columns.get("conversations")
    text = columns.get("text")
    if chat is None and text is None:
        raise RowError(f"has none of {_COLUMNS}; it has {', '.join(columns) or 'nothing'}")
    if tokenizer is None:
        raise RowError("holds text, not token ids: give --tokenizer")
    if chat is not None:
        listed, mask = tokenizer.chat([_message(message) for message in chat])
        return np.asarray(listed, np.int64), mask
    if not isinstance(text, str):
        raise RowError(f"text is {type(text).__name__}, not a string")
    encoded = np.asarray(tokenizer.text(text), np.int64)
    return encoded, np.ones(len(encoded), np.int8)


def _ids(value: object) -> NDArray[np.int64]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise RowError("input_ids is not a list of whole numbers")
    try:
        return np.asarray(value, np.int64)
    except OverflowError as error:
        raise RowError(f"input_ids holds a number that is no token id: {error}") from error


def _loss_mask(value: object, tokens: int) -> list[int]:
    if not isinstance(value, list) or any(item not in (0, 1) for item in value):
        raise RowError("loss_mask is not a list of 0 and 1")
    if len(value) != tokens:
        raise RowError(f"loss_mask has {len(value)} values for {tokens} tokens")
    return value


def _message(message: object) -> dict[str, Any]:
    """A message as chat templates know it; `from` and `value` are ShareGPT's names.

    A field that is null counts as absent, for templates ask whether it is there. The content stays:
    a message that only calls tools has none, and templates ask whether it is null.
    """
    match message:
        case {"role": str(role), **rest}:
            given = {str(name): value for name, value in rest.items()}
            return {"role": role} | {
                name: value
                for name, value in given.items()
                if value is not None or name == "content"
            }
        case {"from": str(sender), "value": str(content)}:
            return {"role": _ROLES.get(sender, sender), "content": content}
        case _:
            raise RowError("a message has neither role and content nor from and value")
