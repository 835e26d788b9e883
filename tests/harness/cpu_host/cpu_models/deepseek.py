"""SGLang's own DeepSeek classes, with the attention that a plain CPU can run.

The registry imports this module in the process that builds the model, before it builds it. So it
is also the place from which the probes of the tests are switched on.
"""

from __future__ import annotations

import probes
import stand_ins
from sglang.srt.models import deepseek_v2, kimi_k25
from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
    AttnForwardMethod,
)


def absorbed_mla(attention: object, batch: object) -> AttnForwardMethod:
    """Choose the one attention of torch_native that serves prefill and decode alike.

    That backend has no choice of its own. The one it would fall back to prefills without filling
    the latent cache, which the decode then reads.
    """
    return AttnForwardMethod.MLA


AttentionBackendRegistry.register("torch_native", absorbed_mla)

EntryClass = []
for _module in (deepseek_v2, kimi_k25):
    _entry = _module.EntryClass
    EntryClass.extend(_entry if isinstance(_entry, list) else [_entry])

stand_ins.install()
probes.install()
