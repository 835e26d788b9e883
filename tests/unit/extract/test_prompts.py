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


def taken(queue: PromptQueue) -> Prompt:
    prompt = queue.take()
    assert prompt is not None
    return prompt


def test_a_prompt_that_is_put_behind_comes_when_all_others_are_done() -> None:
    queue = PromptQueue(prompts(4))
    queue.give_back(taken(queue), behind=True)
    queue.give_back(taken(queue))
    order = [taken(queue).number, taken(queue).number, taken(queue).number]
    assert order == [1, 2, 3]
    for _ in order:
        queue.done()
    assert not queue.wait_until_over(0)
    assert taken(queue).number == 0
    assert not queue.wait_until_over(0)
    queue.done()
    assert queue.take() is None
    assert queue.wait_until_over(0)


def test_a_prompt_that_was_put_behind_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its turn comes before the others are done, as too many wait behind them."""
    monkeypatch.setattr("hs_capture.extract.prompts._MOST_BEHIND", 2)
    queue = PromptQueue(prompts(40))
    lock = threading.Lock()
    flying: set[int] = set()
    alone: list[set[int]] = []
    done: list[int] = []
    behind: set[int] = set()

    def work() -> None:
        while (prompt := queue.take()) is not None:
            with lock:
                flying.add(prompt.number)
                is_behind = prompt.number % 4 == 0 and prompt.number not in behind
            threading.Event().wait(0.002)
            with lock:
                if prompt.number in behind:
                    alone.append(set(flying))
                flying.remove(prompt.number)
                if is_behind:
                    behind.add(prompt.number)
                else:
                    done.append(prompt.number)
            if is_behind:
                queue.give_back(prompt, behind=True)
            else:
                queue.done()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(40))
    assert sorted(map(sorted, alone)) == [[number] for number in range(0, 40, 4)]
    # Not all of them had to wait for the last of the others.
    assert done.index(0) < done.index(39) or done.index(4) < done.index(39)


def test_a_closed_queue_is_over() -> None:
    queue = PromptQueue(prompts(9))
    assert not queue.wait_until_over(0)
    queue.close()
    assert queue.wait_until_over(0)


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
