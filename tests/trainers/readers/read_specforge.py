"""Load an export with SpecForge's own offline reader, loader and collator; save its batches."""

import json
import sys

import torch
from specforge.algorithms.eagle3.data import (
    build_offline_collator,
    build_offline_normalizer,
    build_offline_reader,
)
from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
from specforge.runtime.data_plane.feature_store import LocalFeatureStore

settings, answer = json.loads(sys.argv[1]), sys.argv[2]
length = settings["max_length"]
reader = build_offline_reader(settings["export"], run_id="test", ttt_length=7, max_len=length)
loader = FeatureDataLoader(
    LocalFeatureStore(),
    refs=reader.read(),
    batch_size=4,
    collate_fn=build_offline_collator(),
    per_sample_transform=build_offline_normalizer(length),
    drop_last=False,
)
torch.save([dict(batch.tensors) for batch in loader], answer)
