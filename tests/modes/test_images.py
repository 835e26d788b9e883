"""A Kimi-K2.5 that is sent images: their rows are captured like those of any token."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from harness.captures import status, wait_for
from harness.client import generate
from harness.compare import assert_exact, assert_linked
from harness.generated import assert_followed
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from harness.tiny_v3 import IMAGE_PATCH, IMAGE_TOKEN, build_tiny_kimi, build_tiny_v3

LAYERS = [-1, 0, 3, 6]
# Four patches become one token.
TOKEN_SIDE = 2 * IMAGE_PATCH


@dataclass(frozen=True)
class Seeing:
    """A server that is sent images, and what it made of them in front of its language model."""

    server: Server
    dump_dir: Path
    folder: Path
    reference: Reference

    def send(self, rid: str, tokens: list[int], images: list[str]) -> torch.Tensor:
        """Send a prompt with images, and return their rows, [tokens, hidden size]."""
        known = set(self.folder.glob("*.pt"))
        generate(self.server.url, tokens, rid, image_data=images)
        new = sorted(set(self.folder.glob("*.pt")) - known)
        return torch.cat([torch.load(path) for path in new])


@contextmanager
def kimi(serve: Serve, zygote: Zygote, folder: Path, **settings: str) -> Iterator[Seeing]:
    """Serve a small Kimi-K2.5 with random weights."""
    language_model = build_tiny_v3(folder / "v3")
    model = build_tiny_kimi(folder / "model", language_model)
    environment = {
        "SGLANG_HS_DUMP_DIR": str(folder / "dump"),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_FINAL": "both",
        "SGLANG_HS_BUFFER": "16M",
        "HS_TEST_STAND_INS": "image_processor",
        "HS_TEST_IMAGES": str(folder / "seen"),
        **settings,
    }
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield Seeing(server, folder / "dump", folder / "seen", Reference(language_model))


@pytest.fixture(scope="module")
def seeing(
    serve: Serve, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seeing]:
    """One that captures prompts."""
    with kimi(serve, zygote, tmp_path_factory.mktemp("kimi")) as server:
        yield server


def image(number: int, columns: int, rows: int) -> str:
    """Return a picture of noise that is `columns` x `rows` tokens large."""
    size = (columns * TOKEN_SIDE, rows * TOKEN_SIDE)
    pixels = random.Random(number).randbytes(3 * size[0] * size[1])
    file = io.BytesIO()
    Image.frombytes("RGB", size, pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_rows_of_images_are_exact(seeing: Seeing) -> None:
    """Two images, one of them cut by the chunks: every row, and the ids that a trainer expects.

    SGLang computes with numbers made from the images in the places of these ids.
    """
    before, between, after = prompt(1, 6), prompt(2, 5), prompt(3, 20)
    sent = [*before, IMAGE_TOKEN, *between, IMAGE_TOKEN, *after]
    rows = seeing.send("two", sent, [image(1, 2, 3), image(2, 5, 4)])
    tokens = [*before, *[IMAGE_TOKEN] * 6, *between, *[IMAGE_TOKEN] * 20, *after]
    assert rows.shape[0] == 26
    capture = wait_for(seeing.dump_dir, ["two"])["two"]
    assert_exact(capture, tokens, seeing.reference.seeing(IMAGE_TOKEN, rows), LAYERS)
    assert status(seeing.dump_dir)["counters"]["hook_errors"] == 0


def test_another_image_is_another_prompt(seeing: Seeing) -> None:
    """With the same tokens but another image, rows of the first image are not taken for its own."""
    before, after = prompt(11, 6), prompt(12, 7)
    sent = [*before, IMAGE_TOKEN, *after]
    tokens = [*before, *[IMAGE_TOKEN] * 4, *after]
    first = seeing.send("first", sent, [image(3, 2, 2)])
    second = seeing.send("second", sent, [image(4, 2, 2)])
    assert not torch.equal(first, second)
    store = wait_for(seeing.dump_dir, ["first", "second"])
    reference = seeing.reference
    assert_exact(store["first"], tokens, reference.seeing(IMAGE_TOKEN, first), LAYERS)
    seen = reference.seeing(IMAGE_TOKEN, second)
    assert_linked(store["second"], tokens, seen, LAYERS, [(0, len(before), "first")])


def test_the_same_image_again_has_its_rows(seeing: Seeing) -> None:
    """Its places in the prompt are compared by the ids that a trainer expects, and are the same."""
    before, after = prompt(31, 6), prompt(32, 7)
    sent = [*before, IMAGE_TOKEN, *after]
    tokens = [*before, *[IMAGE_TOKEN] * 4, *after]
    rows = seeing.send("seen", sent, [image(5, 2, 2)])
    generate(seeing.server.url, sent, "again", image_data=[image(5, 2, 2)])
    store = wait_for(seeing.dump_dir, ["seen", "again"])
    seen = seeing.reference.seeing(IMAGE_TOKEN, rows)
    assert_linked(store["again"], tokens, seen, LAYERS, [(0, len(tokens) - 1, "seen")])


def test_prompts_without_images_are_exact(seeing: Seeing) -> None:
    """The same server serves text too."""
    tokens = prompt(21, 40)
    answer = generate(seeing.server.url, tokens, "text")
    assert answer["output_ids"][0] == seeing.reference.next_token(tokens)
    assert_exact(wait_for(seeing.dump_dir, ["text"])["text"], tokens, seeing.reference, LAYERS)


def test_answers_about_images_are_exact_and_every_turn_is_whole(
    serve: Serve, zygote: Zygote, tmp_path: Path
) -> None:
    """Generated tokens have their own ids also where those of prompts with images are hashes."""
    before, after = prompt(41, 6), prompt(42, 7)
    sent = [*before, IMAGE_TOKEN, *after]
    tokens = [*before, *[IMAGE_TOKEN] * 4, *after]
    picture = [image(6, 2, 2)]
    with kimi(serve, zygote, tmp_path, SGLANG_HS_PHASES="prefill,decode") as seeing:
        url = seeing.server.url
        first = generate(url, sent, "one", max_new_tokens=6, image_data=picture)["output_ids"]
        more = [*first, *prompt(43, 5)]
        reply = generate(url, [*sent, *more], "two", max_new_tokens=4, image_data=picture)
        store = wait_for(seeing.dump_dir, ["one", "two"])
        rows = torch.cat([torch.load(path) for path in sorted(seeing.folder.glob("*.pt"))][:1])
        seen = seeing.reference.seeing(IMAGE_TOKEN, rows)
        cached = len(tokens) + 5
        assert reply["meta_info"]["cached_tokens"] == cached
        assert_followed(store["one"], tokens, first, seen, LAYERS)
        assert_followed(store["two"], [*tokens, *more], reply["output_ids"], seen, LAYERS)
        assert store["two"].metadata["missing"] == [[0, cached]]
        assert status(seeing.dump_dir)["counters"]["hook_errors"] == 0
