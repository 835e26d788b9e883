"""A prefill server's transfer engine that moves nothing: SGLang's own, which it has for warm-ups.

SGLang gives it to requests that name a host of its own for them, but takes no prefill server that
was started without a real engine. So the place of one is taken. The real ones wait for the GPU to
reach an event before they read what it computed; here nothing has to be waited for.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer
from sglang.srt.disaggregation.fake import FakeKVManager, FakeKVReceiver, FakeKVSender


class PastEvent:
    """An event that has come to pass already."""

    def record(self, stream: object = None) -> None:
        """Do nothing: on a CPU all work is done when its call returns."""


_module = ModuleType("sglang.srt.disaggregation.nixl")
_module.NixlKVBootstrapServer = CommonKVBootstrapServer  # type: ignore[attr-defined]
_module.NixlKVManager = FakeKVManager  # type: ignore[attr-defined]
_module.NixlKVReceiver = FakeKVReceiver  # type: ignore[attr-defined]
_module.NixlKVSender = FakeKVSender  # type: ignore[attr-defined]
sys.modules[_module.__name__] = _module
torch.cuda.Event = PastEvent
