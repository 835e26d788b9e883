"""Benchmarks only: put on PYTHONPATH by overhead.py, runs in every process of the engine.

Gives dummy weights a realistic scale (norms 1, the rest normal with deviation 0.02: SGLang's own
are so small that every layer's output looks like the embedding), adds the peak of the device memory
to what the server tells of itself, and, where HS_BENCH_SAVE names a folder, captures the way people
do it today: `.cpu()` and `torch.save` inside the forward pass.
"""

import os
import sys

if os.environ.get("HS_BENCH_FALLBACK"):
    sys.path.append(os.environ["HS_BENCH_FALLBACK"])

import wrapt


@wrapt.when_imported("sglang.srt.model_loader.loader")
def _realistic_weights(module):
    import zlib

    import torch

    def initialize(model, *_args, **_kwargs):
        for name, weight in model.state_dict().items():
            if not torch.is_floating_point(weight):
                continue
            if "norm" in name and weight.dim() == 1:
                weight.fill_(1.0)
                continue
            dice = torch.Generator(device=weight.device)
            dice.manual_seed(zlib.crc32(name.encode()))
            weight.normal_(0.0, 0.02, generator=dice)

    module.initialize_dummy_weights = initialize


@wrapt.when_imported("sglang.srt.managers.scheduler")
def _tell_peak_memory(module):
    import torch

    def tell(wrapped, _scheduler, args, kwargs):
        answer = wrapped(*args, **kwargs)
        answer.internal_state["hs_bench_peak_bytes"] = torch.cuda.max_memory_allocated()
        return answer

    wrapt.wrap_function_wrapper(module, "Scheduler.get_internal_state", tell)


if os.environ.get("HS_BENCH_SAVE"):

    @wrapt.when_imported("sglang.srt.models.deepseek_v2")
    def _save_in_the_forward_pass(module):
        import torch

        folder = os.environ["HS_BENCH_SAVE"]

        def save(_processor, args):
            _, hidden, _, batch, aux = args
            lengths = batch.extend_seq_lens_cpu if batch.forward_mode.is_extend() else None
            if not lengths or not batch.rids:
                return (*args[:4], None)
            aux = aux if isinstance(aux, torch.Tensor) else torch.cat(aux, dim=-1)
            rows = sum(int(n) for n in lengths)
            aux, hidden, start = aux[:rows].cpu(), hidden[:rows].cpu(), 0
            for rid, length in zip(batch.rids, lengths, strict=True):
                stop = start + int(length)
                states = {"aux": aux[start:stop].clone(), "final": hidden[start:stop].clone()}
                torch.save(states, f"{folder}/{rid}.pt")
                start = stop
            return (*args[:4], None)

        def attach(wrapped, instance, args, kwargs):
            wrapped(*args, **kwargs)
            layers = instance.config.num_hidden_layers
            instance.model.layers_to_capture = [2, layers // 2, layers - 3]
            instance.capture_aux_hidden_states = True
            instance.logits_processor.register_forward_pre_hook(save)

        wrapt.wrap_function_wrapper(module, "DeepseekV2ForCausalLM.__init__", attach)
