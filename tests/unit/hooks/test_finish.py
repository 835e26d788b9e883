"""The end of a request is seen where SGLang marks it, under either of its names."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from hs_capture.hooks import finish, installed

MODULE = "sglang.srt.managers.schedule_batch"


def request_class(method: str) -> Any:
    """SGLang's class, as far as it is looked at: the third token ends a request."""

    def mark(self: Any, new_accepted_len: int = 1) -> str:
        if len(self.output_ids) >= 3:
            self.finished_reason = "length"
        if new_accepted_len > 1:
            raise RuntimeError("planted")
        return "SGLang's own"

    def init(self: Any) -> None:
        self.output_ids, self.finished_reason = [], None

    return type("Req", (), {"__init__": init, method: mark, "__module__": MODULE})


@pytest.mark.parametrize("method", ["update_finish_state", "check_finished"])
def test_a_finished_request_is_told_and_its_method_answers_as_before(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    module = ModuleType(MODULE)
    module.Req = request_class(method)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(installed, "wrapped", wrapped := [])
    monkeypatch.setattr(finish, "wrapped", wrapped)
    ended: list[Any] = []
    finish.watch(ended.append)
    assert wrapped == [f"{MODULE}.Req.{method}"]
    req = module.Req()
    for token in range(3):
        assert ended == []
        req.output_ids.append(token)
        assert getattr(req, method)() == "SGLang's own"
    assert ended == [req]
    getattr(req, method)(new_accepted_len=0)
    assert ended == [req, req]
    with pytest.raises(RuntimeError, match="planted"):
        getattr(module.Req(), method)(2)
    assert ended == [req, req]
