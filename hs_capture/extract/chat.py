"""Chats and texts become token ids, with the tokenizer and the chat template of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from hs_capture.errors import ConfigError
from hs_capture.extract.samples import RowError
from hs_capture.samples import runs_of

_FILES = ("tokenizer*", "*.jinja", "*.tiktoken", "*.model", "vocab*", "merges*", "*tokens*.json")


class ChatTokenizer:
    """A tokenizer of `transformers`, loaded from a folder."""

    def __init__(self, path: Path, *, trust_remote_code: bool = False) -> None:
        """Raises `ConfigError` when transformers is missing or finds no tokenizer there."""
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise ConfigError(
                "chats and texts need transformers: pip install transformers"
            ) from None
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                path, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{path}: no tokenizer could be loaded: {error}") from error
        self._path = path

    def digest(self) -> str:
        """The xxh3_128 of the files that decide what it does."""
        digest = xxhash.xxh3_128()
        for file in sorted({file for name in _FILES for file in self._path.glob(name)}):
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def text(self, text: str) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer puts around it."""
        return list(self._tokenizer.encode(text))

    def chat(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        """The token ids of a chat, and a mask that is 1 for what the assistant says.

        The mask comes from the template where it marks the assistant's words (`{% generation %}`).
        Else it is found by comparing the chat up to each answer with the chat up to and with it.
        Raises `RowError` when the template refuses the chat, or does not let the answers be found,
        as that of an assistant who speaks first: before it there is no chat to compare with.
        """
        try:
            return self._chat(messages)
        except RowError:
            raise
        except Exception as error:
            # Templates are programs and raise anything.
            raise RowError(f"the chat template does not take this chat: {error}") from error

    def _chat(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        if "generation %}" in str(self._tokenizer.chat_template):
            found = self._tokenizer.apply_chat_template(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            ids, mask = list(found["input_ids"]), list(found["assistant_masks"])
            # transformers marks all up to the end when an answer's last character has no token.
            answers = sum(message["role"] == "assistant" for message in messages)
            if len(runs_of(mask)) < answers:
                raise RowError(
                    f"the chat template marks {len(runs_of(mask))} of {answers} answers; "
                    "give input_ids and loss_mask"
                )
            return ids, mask
        ids = self._tokens(messages)
        mask = [0] * len(ids)
        for position, message in enumerate(messages):
            if message["role"] == "assistant":
                if not position:
                    raise RowError(
                        "the chat begins with the assistant, so what it says cannot be told from "
                        "what the template puts before it; give input_ids and loss_mask"
                    )
                start = len(self._prefix(ids, messages[:position], asked=True))
                stop = len(self._prefix(ids, messages[: position + 1], asked=False))
                mask[start:stop] = [1] * (stop - start)
        return ids, mask

    def _prefix(self, ids: list[int], messages: list[dict[str, Any]], *, asked: bool) -> list[int]:
        begin = self._tokens(messages, asked=asked)
        if ids[: len(begin)] != begin:
            raise RowError(
                f"the chat template does not repeat the first {len(messages)} messages as they "
                "are, so the assistant's tokens cannot be told; give input_ids and loss_mask"
            )
        return begin

    def _tokens(self, messages: list[dict[str, Any]], *, asked: bool = False) -> list[int]:
        if not messages:
            return []
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=asked
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False))
