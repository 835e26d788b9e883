"""A rid is whatever a client sends. It finds its capture again, and does nothing else."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.captures import wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig

LAYERS = [1, 3, 4]
HOSTILE = {
    "parent": "../../x",
    "absolute": "/tmp/hs-capture-was-here",
    "dots": "..",
    "dot": ".",
    "slash": "a/b",
    "like-slash": "a_b",
    "long": "x" * 300,
    "long-too": "x" * 299 + "y",
    "long-unicode": "\N{SNOWMAN}" * 300,
    "empty": "",
    "blank": " ",
    "unicode": "запрос-\N{PILE OF POO}",
    "lines": "two\nlines\r\n",
    "nul": "nul\0byte",
    "shell": "$(touch x);`touch y` & *?[a]",
    "json": '","rid":"other',
    "suffix": "name.hsc",
    "part": "name.part",
}


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    """A server whose dump directory is the only thing in its folder."""
    environment = {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "16M"}
    with serve(zygote, ServerConfig(model, environment)) as server:
        yield server


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_rid_is_found_again(
    server: Server, dump_dir: Path, reference: Reference, kind: str
) -> None:
    """Its capture is there under exactly that rid, right, in a private file in the run folder."""
    rid = HOSTILE[kind]
    tokens = prompt(list(HOSTILE).index(kind), 20)
    before = _count(dump_dir, rid)
    generate(server.url, tokens, rid)
    store = wait_for(dump_dir, [rid] * (before + 1))
    assert len(store.captures(rid)) == before + 1
    capture = store[rid]
    assert_exact(capture, tokens, reference, LAYERS)
    assert capture.metadata["rid"] == rid
    path = capture.path
    assert path.resolve() == path
    assert path.parent.parent.parent == dump_dir
    assert path.name.isascii()
    assert path.name.isprintable()
    assert len(path.name) <= 255
    assert [entry.name for entry in dump_dir.parent.iterdir()] == [dump_dir.name]
    assert not Path(HOSTILE["absolute"]).exists()


@pytest.mark.parametrize(("number", "rid"), [(100, "again"), (110, "../again"), (120, "")])
def test_a_rid_used_twice_has_two_captures(
    server: Server, dump_dir: Path, reference: Reference, number: int, rid: str
) -> None:
    """The second request overwrites nothing; the rid alone gives the newest."""
    before = _count(dump_dir, rid)
    prompts = [prompt(number + i, 10 + i) for i in range(3)]
    for i, tokens in enumerate(prompts, start=1):
        generate(server.url, tokens, rid)
        # What is published at the same time comes in any order.
        store = wait_for(dump_dir, [rid] * (before + i))
    captures = store.captures(rid)[before:]
    assert len({capture.path for capture in captures}) == 3
    for capture, tokens in zip(captures, prompts, strict=True):
        assert_exact(capture, tokens, reference, LAYERS)
    assert store[rid].input_ids.tolist() == prompts[-1]


def test_nobody_else_may_read(server: Server, dump_dir: Path) -> None:
    """Hidden states give prompts away: folders are 0700, files are 0600, and none is a link."""
    generate(server.url, prompt(130, 5), "private")
    wait_for(dump_dir, ["private"])
    for path in [dump_dir, *dump_dir.rglob("*")]:
        mode = path.lstat().st_mode
        assert stat.S_ISDIR(mode) or stat.S_ISREG(mode)
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path


def _count(dump_dir: Path, rid: str) -> int:
    """Return how many captures of ``rid`` there are already."""
    return [capture.rid for capture in wait_for(dump_dir, [])].count(rid)
