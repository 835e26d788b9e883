"""Train a tiny EAGLE-3 drafter of ModelOpt on one batch of an export; save the losses.

Needs a transformers that ModelOpt 0.47.0 supports, below 5.15.
"""

import json
import sys
from pathlib import Path

import modelopt.torch.speculative as mtsp
import torch
from modelopt.torch.speculative.eagle.utils import (
    EagleOfflineDataCollator,
    OfflineSupervisedDataset,
)
from transformers import AutoModelForCausalLM

settings, answer, verifier = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
STEPS = 20
torch.manual_seed(0)
sidecar = json.loads(Path(settings["export"], "export.json").read_text())
model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32)
draft = {
    "hidden_size": model.config.hidden_size,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": model.config.vocab_size,
    "draft_vocab_size": model.config.vocab_size,
    "max_position_embeddings": 4096,
    "use_aux_hidden_state": True,
    "eagle_aux_hidden_state_layer_ids": sidecar["trainer_layer_ids"],
    "_attn_implementation": "eager",
}
eagle = {
    "eagle_decoder_type": "llama",
    "eagle_offline": True,
    "eagle_use_torch_compile": False,
    "eagle_ttt_steps": 2,
    "eagle_architecture_config": draft,
}
mtsp.convert(model, [("eagle", eagle)])
files = sorted(map(str, Path(settings["export"]).rglob("*.pt")))
dataset = OfflineSupervisedDataset(files, answer_only_loss=True)
collate = EagleOfflineDataCollator(settings["max_length"])
batch = collate([dataset[index] for index in range(8, 12)])
model.train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
torch.save(losses, answer)
