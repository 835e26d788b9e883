"""Train a tiny EAGLE-3 drafter of SpecForge on one batch of an export; save the losses."""

import json
import sys
from pathlib import Path

import torch
from specforge.algorithms.eagle3.data import (
    build_offline_collator,
    build_offline_normalizer,
    build_offline_reader,
)
from specforge.algorithms.eagle3.model import OnlineEagle3Model
from specforge.core.loss import LogSoftmaxLoss
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from specforge.modeling.target.target_head import TargetHead
from specforge.optimizer import BF16Optimizer
from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
from specforge.runtime.data_plane.feature_store import LocalFeatureStore
from specforge.training.strategies.base import Eagle3TrainStrategy
from specforge.utils import padding
from transformers import LlamaConfig

settings, answer, verifier = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
STEPS, TTT_STEPS = 20, 2
torch.manual_seed(0)
target = json.loads((verifier / "config.json").read_text())

# SpecForge finds the head through the index of a model in several files; the tiny one is one file.
index = {"weight_map": {"lm_head.weight": str(verifier / "model.safetensors")}}
Path("model.safetensors.index.json").write_text(json.dumps(index))
# These are the steps of `from_pretrained` but for its cast to bfloat16: the states are float32.
head = TargetHead(str(verifier))
head.load_weights(".")
head.freeze_weights()

config = LlamaConfig(
    hidden_size=target["hidden_size"],
    intermediate_size=256,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=target["vocab_size"],
    draft_vocab_size=target["vocab_size"],
    max_position_embeddings=4096,
)
draft = LlamaForCausalLMEagle3(config, attention_backend="sdpa")
draft.load_embedding(str(verifier))
draft.freeze_embedding()
model = OnlineEagle3Model(draft, length=TTT_STEPS, attention_backend="sdpa")
strategy = Eagle3TrainStrategy(model, target_head=head)

length = settings["max_length"]
reader = build_offline_reader(
    settings["export"], run_id="test", ttt_length=TTT_STEPS, max_len=length
)
loader = FeatureDataLoader(
    LocalFeatureStore(),
    # Two short samples: the kernels of the loss run in Triton's interpreter, a token at a time.
    refs=list(reader.read())[8:10],
    batch_size=2,
    collate_fn=build_offline_collator(),
    per_sample_transform=build_offline_normalizer(length),
)
(batch,) = loader
optimizer = BF16Optimizer(
    draft, lr=1e-3, total_steps=STEPS, warmup_ratio=0, lr_scheduler="constant"
)
losses = []
for _ in range(STEPS):
    loss = strategy.forward_loss(batch).loss
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))

# The loss is a cross-entropy: for a drafter with the target's own logits, it is their entropy.
features = (batch.tensors[name] for name in ("input_ids", "target", "loss_mask"))
_, states, mask = head.preprocess(*features)
logits, least = head(states), 0.0
for step in range(TTT_STEPS):
    entropy = LogSoftmaxLoss.apply(logits, logits.softmax(-1), mask)
    least += strategy.ploss_decay**step * float(entropy)
    logits, mask = padding(logits, left=False), padding(mask, left=False)
torch.save({"losses": losses, "least": least}, answer)
