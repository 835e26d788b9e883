"""The processor that a Kimi-K2.5 brings as code of its own, in the few lines that the tests need.

It cuts an image whose sides are whole tokens into patches, as the published one does. SGLang's own
processor for the model calls it. Its tokenizer writes each token id as a word.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from sglang.srt.utils.hf_transformers import processor as sglang_processor
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torchvision.transforms.functional import pil_to_tensor
from transformers import PreTrainedTokenizerFast

PATCH, MERGED = 14, 2
PLACEHOLDER, PLACEHOLDER_ID = "<|media_pad|>", 1000
VOCABULARY = 1024


class WordTokenizer(PreTrainedTokenizerFast):
    """Under a name of its own: SGLang loads transformers' own class a second time, from files."""


class MediaProcessor:
    """What SGLang asks about images before they are processed."""

    def __init__(self) -> None:
        self.media_proc_cfg = {
            "patch_size": PATCH,
            "merge_kernel_size": MERGED,
            "in_patch_limit": 4096,
            "patch_limit_on_one_side": 512,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }

    def media_tokens_calculator(self, media: dict[str, Any]) -> int:
        """Return how many tokens an image becomes."""
        width, height = media["image"].size
        return (width // PATCH // MERGED) * (height // PATCH // MERGED)


class ImageProcessor:
    """Turns images into patches; text comes with one placeholder per token already."""

    def __init__(self) -> None:
        words = {f"t{i}": i for i in range(VOCABULARY) if i != PLACEHOLDER_ID}
        tokenizer = Tokenizer(WordLevel({**words, PLACEHOLDER: PLACEHOLDER_ID}, unk_token="t0"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken(PLACEHOLDER)])
        self.tokenizer = WordTokenizer(tokenizer_object=tokenizer)
        self.media_processor = self.image_processor = MediaProcessor()

    @classmethod
    def from_pretrained(cls, _path: str, **_options: Any) -> ImageProcessor:
        """Return it; nothing of it lies in the model's folder."""
        return cls()

    def __call__(
        self, text: list[str], medias: list[dict[str, Any]] | None = None, **options: Any
    ) -> dict[str, torch.Tensor]:
        """Return token ids and, for all images together, patches [n, 3, 14, 14] and grids."""
        found = {"input_ids": torch.tensor([self.tokenizer.encode(text[0])])}
        if medias:
            images = [media["image"] for media in medias]
            found["pixel_values"] = torch.cat([_patches(image) for image in images])
            found["grid_thws"] = torch.tensor(
                [[1, image.size[1] // PATCH, image.size[0] // PATCH] for image in images]
            )
        return found


def _patches(image: Image.Image) -> torch.Tensor:
    pixels = pil_to_tensor(image.convert("RGB")).float() / 127.5 - 1
    rows, columns = pixels.shape[1] // PATCH, pixels.shape[2] // PATCH
    cut = pixels.reshape(3, rows, PATCH, columns, PATCH).permute(1, 3, 0, 2, 4)
    return cut.reshape(rows * columns, 3, PATCH, PATCH)


sglang_processor._CUSTOMIZED_MM_PROCESSOR["kimi_k25"] = ImageProcessor
