"""Train a tiny EAGLE-3 drafter of speculators on one batch of an export; save the losses."""

import json
import sys
from pathlib import Path

import torch
from speculators.losses.utils import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from transformers import LlamaConfig

settings, answer, verifier = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
STEPS = 20
torch.manual_seed(0)
target = json.loads(Path(verifier, "config.json").read_text())
config = LlamaConfig(
    hidden_size=target["hidden_size"],
    intermediate_size=256,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=target["vocab_size"],
    max_position_embeddings=4096,
)
sidecar = json.loads(Path(settings["export"], "export.json").read_text())
layer_ids = sidecar["trainer_layer_ids"]
model = Eagle3DraftModel.from_training_args(
    config,
    draft_vocab_size=target["vocab_size"],
    norm_before_residual=False,
    num_layers=1,
    ttt_steps=3,
    target_layer_ids=layer_ids,
    verifier_name_or_path=verifier,
    draft_attn_impl="eager",
)
model.load_verifier_weights()
dataset = ArrowDataset(
    settings["max_length"],
    settings["export"],
    on_missing="raise",
    hidden_states_dtype=torch.float32,
)
collate = CollateFn(
    settings["max_length"], target["hidden_size"], 3, dtype=torch.float32, preprocess=shift_batch
)
batch = collate([dataset[index] for index in range(6, 10)])
batch = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
# The kernels of the other implementation need a GPU.
loss_config = resolve_loss_config("kl_div", "eager")
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = model(**batch, ttt_steps=3, loss_config=loss_config)[1]
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
torch.save(losses, answer)
