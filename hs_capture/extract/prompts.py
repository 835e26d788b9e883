"""The prompts still to be captured, handed out to the threads that capture them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from hs_capture.extract.samples import Prompt

_MOST_BEHIND = 1000
"""Prompts that may wait behind all others; with more their turn comes, so that they stay few."""


class PromptQueue:
    """Each prompt of an iterator to one thread, and again to another when it is given back.

    Holds no prompts but those that were given back.
    """

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._prompts = prompts
        self._exhausted = False
        self._given_back: list[Prompt] = []
        self._behind: list[Prompt] = []
        self._alone = False
        """Whether the prompt that is in flight has to be the only one."""
        self._in_flight = 0
        self._closed = False
        self._changed = threading.Condition()
        self._reading = threading.Lock()

    @property
    def in_flight(self) -> int:
        """How many prompts were taken and are not done."""
        return self._in_flight

    def take(self) -> Prompt | None:
        """The next prompt; None when all are done. Waits while others may still give one back,
        and while a prompt is in flight that has to be alone.

        Raises what the iterator raises.
        """
        while True:
            with self._changed:
                if self._closed:
                    return None
                if self._given_back:
                    self._in_flight += 1
                    return self._given_back.pop()
                if self._alone or self._exhausted or len(self._behind) >= _MOST_BEHIND:
                    if self._in_flight:
                        self._changed.wait(0.2)
                        continue
                    if not self._behind:
                        return None
                    self._in_flight += 1
                    self._alone = True
                    return self._behind.pop()
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
            self._end_one()

    def give_back(self, prompt: Prompt, *, behind: bool = False) -> None:
        """A prompt that was taken is for somebody else: at once, or `behind` all others, when
        nothing else is in flight."""
        with self._changed:
            (self._behind if behind else self._given_back).append(prompt)
            self._end_one()

    def close(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_until_over(self, seconds: float) -> bool:
        """Wait at most so long until nothing will be handed out any more; returns whether."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing will be handed out any more."""
        left = self._given_back or self._behind or self._in_flight or not self._exhausted
        return self._closed or not left

    def _end_one(self) -> None:
        self._in_flight -= 1
        self._alone = False
        self._changed.notify_all()

    def _read(self) -> Prompt | None:
        # Reading a row may tokenize a long text; the others must be able to come and go meanwhile.
        with self._reading:
            if self._exhausted or self._closed:
                return None
            prompt = next(self._prompts, None)
            self._exhausted = prompt is None
            return prompt
