"""Hook on SGLang's requests: when one has come to its end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hs_capture.hooks.installed import wrapped

METHODS = ("update_finish_state", "check_finished")
"""The method of ``Req`` that marks it as finished: from 0.5.13 on, and up to 0.5.12. It is called
after each token, and when SGLang gives a running request up."""


def watch(ended: Callable[[Any], None]) -> None:
    """Have `ended` called with each request that is finished, perhaps more than once.

    It is called in the scheduler's thread and must not raise. The wrapper is a plain function: it
    runs once a request and token.
    """
    from sglang.srt.managers.schedule_batch import Req

    (name,) = (name for name in METHODS if hasattr(Req, name))
    method = getattr(Req, name)

    @functools.wraps(method)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if self.finished_reason is not None:
            ended(self)
        return result

    setattr(Req, name, followed)
    wrapped.append(f"{Req.__module__}.Req.{name}")
