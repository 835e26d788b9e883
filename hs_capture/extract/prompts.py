"""The prompts still to be captured, handed out to the threads that capture them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from hs_capture.extract.samples import Prompt


class PromptQueue:
    """Each prompt of an iterator to one thread, and again to another when it is given back.

    Holds no prompts but those that were given back.
    """

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._prompts = prompts
        self._exhausted = False
        self._given_back: list[Prompt] = []
        self._in_flight = 0
        self._closed = False
        self._changed = threading.Condition()
        self._reading = threading.Lock()

    @property
    def in_flight(self) -> int:
        """How many prompts were taken and are not done."""
        return self._in_flight

    def take(self) -> Prompt | None:
        """The next prompt; None when all are done. Waits while others may still give one back.

        Raises what the iterator raises.
        """
        while True:
            with self._changed:
                if self._closed:
                    return None
                if self._given_back:
                    self._in_flight += 1
                    return self._given_back.pop()
                if self._exhausted:
                    if not self._in_flight:
                        return None
                    self._changed.wait(0.2)
                    continue
                self._in_flight += 1
            try:
                prompt = self._read()
            except BaseException:
                self.done()
                raise
            if prompt is not None:
                return prompt
            self.done()

    def done(self) -> None:
        """A prompt that was taken needs nothing more."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def give_back(self, prompt: Prompt) -> None:
        """A prompt that was taken is for somebody else."""
        with self._changed:
            self._given_back.append(prompt)
            self._in_flight -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _read(self) -> Prompt | None:
        # Reading a row may tokenize a long text; the others must be able to come and go meanwhile.
        with self._reading:
            if self._exhausted or self._closed:
                return None
            prompt = next(self._prompts, None)
            self._exhausted = prompt is None
            return prompt
