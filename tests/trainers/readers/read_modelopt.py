"""Load an export with ModelOpt's own offline data set and collator; save its batches."""

import json
import sys
from pathlib import Path

import torch
from modelopt.torch.speculative.eagle.utils import (
    EagleOfflineDataCollator,
    OfflineSupervisedDataset,
)

settings, answer = json.loads(sys.argv[1]), sys.argv[2]
files = sorted(map(str, Path(settings["export"]).rglob("*.pt")))
dataset = OfflineSupervisedDataset(files, answer_only_loss=True)
collate = EagleOfflineDataCollator(settings["max_length"])
size = 4
batches = [
    collate([dataset[index] for index in range(start, min(start + size, len(dataset)))])
    for start in range(0, len(dataset), size)
]
torch.save(batches, answer)
