"""Load an export with speculators' own data set and collator; save samples and one batch each."""

import json
import sys

import torch
from speculators.train.data import ArrowDataset, CollateFn

settings, answer = json.loads(sys.argv[1]), sys.argv[2]
length = settings["max_length"]
dataset = ArrowDataset(
    length, settings["export"], on_missing="raise", hidden_states_dtype=torch.float32
)
hidden_size = dataset[0]["verifier_last_hidden_states"].shape[1]
collate = CollateFn(length, hidden_size, 3, dtype=torch.float32)
batches = [collate([dataset[index]]) for index in range(len(dataset))]
torch.save({"batches": batches, "lengths": dataset.approx_lengths}, answer)
