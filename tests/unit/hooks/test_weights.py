"""What SGLang's methods that change weights mean for the capture, by how they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from hs_capture.hooks import runner
from hs_capture.hooks.guard import Guard
from hs_capture.hooks.weights import wrap_updates


@dataclass
class Request:
    flush_cache: bool = True


@dataclass
class Answer:
    success: bool


class Updater:
    """Has what the scheduler's class of this purpose has."""

    def __init__(self, do: Callable[[], Answer]) -> None:
        self._do = do

    def update_weights_from_disk(self, recv_req: Request) -> Answer:
        return self._do()

    def begin_weight_update(self, recv_req: Request) -> Answer:
        return self._do()

    def end_weight_update(self, recv_req: Request) -> Answer:
        return self._do()

    def get_weights_by_name(self, recv_req: Request) -> Answer:
        return self._do()


class Told:
    """Stands where the session of a capturing server is."""

    def __init__(self) -> None:
        self.loads = 0
        self.news: list[Any] = []
        self.errors: list[str] = []

    def weights_loaded(self, cache_is_empty: bool) -> None:
        self.news.append(("loaded", cache_is_empty))

    def begin_weights_change(self) -> None:
        self.news.append("begins")

    def change_weights(self) -> None:
        self.news.append("ends")

    def load(self, success: bool) -> Answer:
        self.loads += 1
        return Answer(success)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = Told()
    monkeypatch.setattr(runner, "weight_loads", lambda: told.loads)
    monkeypatch.setattr(runner, "_session", told)
    guard = Guard()
    guard.tell = lambda text, _loud: told.errors.append(text)
    monkeypatch.setattr(runner, "_guard", guard)
    return told


@pytest.fixture
def updater(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Answer]], Updater]:
    """Make an updater of a class that was wrapped as the module that defines it was imported."""
    module = ModuleType("updaters")
    copy = type("Updater", (), dict(vars(Updater)))
    copy.__module__ = "updaters"
    vars(module).update(Updater=copy, Request=Request)
    wrap_updates(module)
    made: Callable[[Callable[[], Answer]], Updater] = vars(module)["Updater"]
    return made


Make = Callable[[Callable[[], Answer]], Updater]


def test_weights_that_were_loaded_are_others(told: Told, updater: Make) -> None:
    """The answer is SGLang's; the prefix cache is empty only if that was asked for."""
    answer = updater(lambda: told.load(True)).update_weights_from_disk(Request())
    assert answer == Answer(True)
    updater(lambda: told.load(True)).update_weights_from_disk(recv_req=Request(flush_cache=False))
    assert told.news == [("loaded", True), ("loaded", False)]


def test_weights_that_were_put_there_in_another_way_are_others(told: Told, updater: Make) -> None:
    """SGLang can also load without the model's own method."""
    updater(lambda: Answer(True)).update_weights_from_disk(Request())
    assert told.news == [("loaded", True)]


def test_an_update_that_failed_before_it_loaded_is_none(told: Told, updater: Make) -> None:
    assert updater(lambda: Answer(False)).update_weights_from_disk(Request()) == Answer(False)
    assert told.news == []


def test_an_update_that_failed_after_it_loaded_is_one(told: Told, updater: Make) -> None:
    """Half of the weights may be new, and the prefix cache is of the old ones."""
    updater(lambda: told.load(False)).update_weights_from_disk(Request())
    assert told.news == [("loaded", False)]


def test_an_update_that_raises_is_one(told: Told, updater: Make) -> None:
    """The exception is SGLang's to handle."""

    def fail() -> Answer:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        updater(fail).update_weights_from_disk(Request())
    assert told.news == [("loaded", False)]


def test_a_change_of_several_calls_begins_before_the_call_and_ends_after_it(
    told: Told, updater: Make
) -> None:
    seen: list[list[Any]] = []

    def do() -> Answer:
        seen.append(list(told.news))
        return Answer(True)

    updater(do).begin_weight_update(Request())
    updater(do).end_weight_update(Request())
    assert seen == [["begins"], ["begins"]]
    assert told.news == ["begins", "ends"]


def test_the_end_of_no_change_is_none(told: Told, updater: Make) -> None:
    updater(lambda: Answer(False)).end_weight_update(Request())
    assert told.news == []


def test_methods_that_only_read_weights_are_left_alone(told: Told, updater: Make) -> None:
    updater(lambda: Answer(True)).get_weights_by_name(Request())
    assert told.news == []


class Unlike:
    """A request and an answer of a SGLang that has other names for what we read."""


def test_what_cannot_be_read_counts_as_changed_and_never_reaches_sglang(
    told: Told, updater: Make
) -> None:
    """The answer is SGLang's all the same, and the errors are counted."""
    unlike: Any = Unlike()
    assert updater(lambda: told.load(True)).update_weights_from_disk(unlike) == Answer(True)
    assert told.news == [("loaded", False)]
    assert updater(lambda: unlike).update_weights_from_disk(Request()) is unlike
    assert told.news == [("loaded", False)] * 2
    assert updater(lambda: unlike).end_weight_update(Request()) is unlike
    assert told.news == [("loaded", False)] * 2
    assert len(told.errors) == 3


def test_an_error_of_ours_leaves_the_answer_alone(
    told: Told, updater: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("planted")

    for name in ("weights_loaded", "begin_weights_change", "change_weights"):
        monkeypatch.setattr(told, name, fail)
    made = updater(lambda: Answer(True))
    for call in (
        made.update_weights_from_disk,
        made.begin_weight_update,
        made.end_weight_update,
    ):
        assert call(Request()) == Answer(True)
    assert len(told.errors) == 3
