"""A server that drafts with EAGLE-3 or DFlash: it and we get the layers that each asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.answers import timeless
from harness.captures import status, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import INTERPRETED, Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig
from harness.tiny_draft import build_tiny_dflash, build_tiny_eagle3
from harness.tiny_model import HIDDEN

# Of the drafter's layers 1, 4 and 6 one is among these.
LAYERS = [-1, 1, 3, 5]
LENGTHS = [1, 18]


DRAFTERS: dict[str, Callable[[Path], Path]] = {
    "EAGLE3": build_tiny_eagle3,
    "DFLASH": lambda path: build_tiny_dflash(path, block=2),
}
OPTIONS = {
    "EAGLE3": [
        *("--speculative-num-steps", "1"),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "2"),
    ],
    "DFLASH": ["--speculative-draft-attention-backend", "triton"],
}


@dataclass(frozen=True)
class Drafted:
    """What a server answered, what its drafter was given, and what was captured."""

    answers: dict[str, Any]
    given: list[torch.Tensor]
    dump_dir: Path


@pytest.fixture(scope="module", params=sorted(DRAFTERS))
def ask(
    request: pytest.FixtureRequest,
    serve: Serve,
    interpreting: Zygote,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[bool], Drafted]:
    """Serve with capture on or off and send the same few requests, one at a time."""
    draft = DRAFTERS[request.param](tmp_path_factory.mktemp("model") / "draft")
    arguments = [
        *("--attention-backend", "triton"),
        *("--speculative-algorithm", request.param),
        *("--speculative-draft-model-path", str(draft)),
        *OPTIONS[request.param],
    ]

    def asked(captured: bool) -> Drafted:
        folder = tmp_path_factory.mktemp("given")
        environment = {
            **INTERPRETED,
            "HS_TEST_STAND_INS": "speculation",
            "HS_TEST_DRAFT": str(folder),
        }
        if captured:
            environment |= {
                "SGLANG_HS_DUMP_DIR": str(folder / "dump"),
                "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
                "SGLANG_HS_FINAL": "both",
                "SGLANG_HS_BUFFER": "16M",
            }
        config = ServerConfig(model, environment, arguments=arguments)
        with serve(interpreting, config) as server:
            answers = {
                f"drafted-{length}": timeless(
                    generate(
                        server.url,
                        prompt(length, length),
                        f"drafted-{length}",
                        max_new_tokens=3,
                        timeout=300,
                        return_logprob=True,
                    )
                )
                for length in LENGTHS
            }
        given = [torch.load(path) for path in sorted(folder.glob("*.pt"))]
        return Drafted(answers, given, folder / "dump")

    return asked


@pytest.fixture(scope="module")
def off(ask: Callable[[bool], Drafted]) -> Drafted:
    """Served without capture."""
    return ask(False)


@pytest.fixture(scope="module")
def on(ask: Callable[[bool], Drafted]) -> Drafted:
    """Served with capture of layers that are not the drafter's."""
    return ask(True)


def test_the_drafter_is_given_the_same_bits(off: Drafted, on: Drafted) -> None:
    """Every forward of the drafter begins with what it would have begun with."""
    assert len(on.given) == len(off.given) > len(LENGTHS)
    for ours, theirs in zip(on.given, off.given, strict=True):
        assert ours.shape[1] == 3 * HIDDEN
        assert ours.view(torch.int32).equal(theirs.view(torch.int32))


def test_tokens_and_acceptance_are_the_same(off: Drafted, on: Drafted) -> None:
    """So are tokens, logprobs, and how many drafted tokens were accepted."""
    assert on.answers == off.answers
    assert all("spec_accept_length" in answer["meta_info"] for answer in on.answers.values())


def test_prompts_are_captured_once_and_exact(on: Drafted, reference: Reference) -> None:
    """The prompt's rows alone: no row of a verified draft, no row of the drafter."""
    store = wait_for(on.dump_dir, on.answers)
    assert len(store) == len(on.answers)
    for length in LENGTHS:
        assert_exact(store[f"drafted-{length}"], prompt(length, length), reference, LAYERS)
    assert status(on.dump_dir)["counters"]["hook_errors"] == 0


def test_a_draft_of_the_same_class_is_not_captured(
    serve: Serve, interpreting: Zygote, model: Path, tmp_path: Path, reference: Reference
) -> None:
    """STANDALONE speculation with the model as its own draft: only the target is captured.

    All that such a draft guesses is right, so rows of accepted tokens come by in verifications.
    """
    environment = {
        **INTERPRETED,
        "HS_TEST_STAND_INS": "speculation",
        "SGLANG_HS_DUMP_DIR": str(tmp_path / "dump"),
        "SGLANG_HS_LAYERS": ",".join(map(str, LAYERS)),
        "SGLANG_HS_BUFFER": "16M",
    }
    options = {
        "--attention-backend": "triton",
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": str(model),
        "--speculative-num-steps": "1",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "2",
    }
    arguments = [text for option in options.items() for text in option]
    tokens = prompt(5, 5)
    with serve(interpreting, ServerConfig(model, environment, arguments=arguments)) as server:
        answer = generate(server.url, tokens, "own-draft", max_new_tokens=4, timeout=300)
        assert answer["output_ids"][0] == reference.next_token(tokens)
        assert answer["meta_info"]["spec_accept_length"] > 1
        assert server.log().count("hs-capture 0") == 1
    store = wait_for(tmp_path / "dump", ["own-draft"])
    assert len(store) == 1
    assert_exact(store["own-draft"], tokens, reference, LAYERS)
    assert status(tmp_path / "dump")["counters"]["hook_errors"] == 0
