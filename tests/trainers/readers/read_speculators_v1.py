"""Load an export with the data set for v1 files of speculators 0.7; save one batch a file."""

import json
import sys

import torch
from speculators.train.data import CollateFn, SampleFileDataset, list_files

settings, answer = json.loads(sys.argv[1]), sys.argv[2]
length = settings["max_length"]
files = sorted(list_files(settings["export"]))
dataset = SampleFileDataset(length, file_list=files, hidden_states_dtype=torch.float32)
hidden_size = dataset[0]["verifier_last_hidden_states"].shape[1]
collate = CollateFn(length, hidden_size, 3, dtype=torch.float32)
batches = [collate([dataset[index]]) for index in range(len(dataset))]
torch.save({"batches": batches, "lengths": list(dataset.approx_lengths)}, answer)
