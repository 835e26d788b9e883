"""Each prompt goes to one thread, and to another one when it is given back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from hs_capture.extract.prompts import PromptQueue
from hs_capture.extract.samples import Prompt


def prompts(count: int) -> Iterator[Prompt]:
    for number in range(count):
        yield Prompt(number, "", "", np.zeros(1, np.int64), ())


def test_every_prompt_is_done_once_also_when_given_back() -> None:
    """Nobody ends while another may still give a prompt back."""
    queue = PromptQueue(prompts(200))
    done: list[int] = []
    returned: set[int] = set()
    lock = threading.Lock()

    def work() -> None:
        while (prompt := queue.take()) is not None:
            with lock:
                again = prompt.number % 3 == 0 and prompt.number not in returned
                returned.add(prompt.number)
            if again:
                queue.give_back(prompt)
                continue
            with lock:
                done.append(prompt.number)
            queue.done()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(done) == Counter(range(200))
    assert queue.in_flight == 0


def test_a_closed_queue_hands_out_nothing() -> None:
    queue = PromptQueue(prompts(9))
    assert queue.take() is not None
    queue.close()
    assert queue.take() is None


def test_an_error_of_the_input_reaches_one_thread_and_ends_the_others() -> None:
    def broken() -> Iterator[Prompt]:
        yield from prompts(1)
        raise OSError("the disk is gone")

    queue = PromptQueue(broken())
    assert queue.take() is not None
    with pytest.raises(OSError, match="the disk is gone"):
        queue.take()
    queue.done()
    assert queue.take() is None
