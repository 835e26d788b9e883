"""What the engine itself made of the prompts: saved answers, or those of a server that runs."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError, FormatError
from hs_capture.extract.answer import Answer, answer_of
from hs_capture.extract.client import Client, RefusedError, ServerError, ServerGoneError
from hs_capture.format.record import parse_json
from hs_capture.samples import SAMPLES_FILE, read_samples
from hs_capture.settings import VERIFY_RIDS

if TYPE_CHECKING:
    from hs_capture.captured_request import Capture

ROWS = 256
"""At most so many rows of a capture are compared."""


class AnswerMissingError(Exception):
    """There is no answer to compare a capture with; the message says why, for many at once."""


class Witness(ABC):
    """Knows what the engine said."""

    name: str
    asked_again: bool
    """Whether the prompt was computed a second time, in another batch."""

    rids: Container[str] | None
    """The rids that there are answers for; None for any."""

    @abstractmethod
    def answer(self, capture: Capture) -> Answer:
        """The engine's answer to the prompt of `capture`; `AnswerMissingError` if there is none."""


class Saved(Witness):
    """Answers that were saved when the captures were made, by rid."""

    asked_again = False

    def __init__(self, name: str, answers: dict[str, Answer]) -> None:
        self.name, self.rids, self._answers = name, answers, answers

    def answer(self, capture: Capture) -> Answer:
        return self._answers[capture.rid]


class Asked(Witness):
    """A server that runs, with the model that made the captures."""

    asked_again = True
    rids = None

    def __init__(self, url: str, placeholders: frozenset[int]) -> None:
        """Prompts with one of the token ids `placeholders` were more than their tokens."""
        self._client = Client(url)
        self.name = f"server {self._client.url}"
        self._placeholders = placeholders

    def answer(self, capture: Capture) -> Answer:
        """Raises `ConfigError` if nobody answers at the address."""
        ids = capture.input_ids.numpy()
        if not self._placeholders.isdisjoint(ids.tolist()):
            raise AnswerMissingError("with images, which cannot be asked for again")
        # The logits of a whole long prompt could be more than the server has room for.
        start = max(0, len(ids) - ROWS)
        rid = VERIFY_RIDS + secrets.token_hex(8)
        try:
            return self._client.score(ids, rid, start)
        except ServerGoneError as error:
            raise ConfigError(str(error)) from error
        except FormatError as error:
            raise ConfigError(f"{error}: is it SGLang?") from error
        except (RefusedError, ServerError) as error:
            raise AnswerMissingError(f"not taken by the server ({error})") from error


def saved_in_store(path: Path) -> Saved:
    """The tokens that extract kept in the store at `path`.

    Raises `ConfigError` when there are none, `FormatError` for a damaged samples.jsonl.
    """
    samples = read_samples(path) or {}
    answers = {
        rid: Answer(rid, sample.next_token, ())
        for rid, sample in samples.items()
        if sample.next_token is not None
    }
    if not answers:
        raise ConfigError(
            f"{path} does not hold what the engine made of its prompts (only a store that "
            "hs-capture extract has written does): give --server or --responses"
        )
    return Saved(SAMPLES_FILE, answers)


def saved_in_file(path: Path) -> Saved:
    """The answers in a file of JSON lines, each as SGLang's /generate gave it to a greedy request.

    Of two lines with one rid the later holds. Raises `ConfigError`, with the number of the line.
    """
    answers: dict[str, Answer] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                place = f"{path}: line {number}"
                answer = answer_of(parse_json(line, place), place)
                if answer.rid is None:
                    raise ConfigError(f"{place}: no rid, neither as rid nor as meta_info.id")
                answers[answer.rid] = answer
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except FormatError as error:
        raise ConfigError(str(error)) from error
    return Saved(str(path), answers)
