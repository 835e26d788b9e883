"""Servers as users start them: off changes nothing at all, on changes nothing that is served."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.answers import timeless
from harness.captures import run_info, status, wait_for
from harness.client import generate
from harness.compare import assert_exact
from harness.launching import Launcher, Spawner, Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, ServerConfig

LENGTHS = [1, 15, 16, 17, 40, 100]
HOOKED = [
    "DeepseekV2ForCausalLM.__init__",
    "DeepseekV2Model.forward",
    "ForwardBatch.init_new",
    "ModelRunner.forward",
    "ModelRunner.load_model",
]


@dataclass(frozen=True)
class Served:
    """What one server answered, and what was hooked in the process that computed it."""

    answers: dict[str, Any]
    report: dict[str, Any]


@pytest.fixture(scope="module")
def ask(serve: Serve, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Serve with some environment, and send the same requests, one at a time."""

    def asked(launcher: Launcher, environment: dict[str, str]) -> Served:
        tap = tmp_path_factory.mktemp("tap")
        config = ServerConfig(
            model,
            {**environment, "HS_TEST_TAP": str(tap)},
            arguments=["--enable-return-hidden-states"],
        )
        answers = {}
        with serve(launcher, config) as server:
            for kind, wanted in _KINDS.items():
                for length in LENGTHS:
                    rid = f"{kind}-{length}"
                    # A key of its own keeps the prompts of one kind out of the next one's cache.
                    answers[rid] = timeless(
                        generate(
                            server.url,
                            prompt(length, length),
                            rid,
                            max_new_tokens=8,
                            extra_key=kind,
                            **wanted,
                        )
                    )
        return Served(answers, json.loads((tap / "report.json").read_text()))

    return asked


_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3},
    "states": {"return_hidden_states": True},
}


@pytest.fixture(scope="module")
def absent(ask: Any, python_without_us: Path) -> Served:
    """Served from an environment in which the plugin is not installed."""
    served: Served = ask(Spawner(python_without_us), {})
    return served


@pytest.fixture(scope="module")
def off(ask: Any, spawner: Spawner) -> Served:
    """Served without our variable, in a process where the plugin is installed."""
    served: Served = ask(spawner, {})
    return served


@pytest.fixture(scope="module")
def blank(ask: Any, zygote: Zygote) -> Served:
    """Served with a variable that holds white space only."""
    served: Served = ask(zygote, {"SGLANG_HS_DUMP_DIR": " \t "})
    return served


@pytest.fixture(scope="module")
def on(ask: Any, spawner: Spawner, dump_dir: Path) -> Served:
    """Served with capture on, everything else at its default."""
    served: Served = ask(spawner, {"SGLANG_HS_DUMP_DIR": str(dump_dir), "SGLANG_HS_BUFFER": "64M"})
    return served


def test_off_leaves_sglang_as_it_is(off: Served) -> None:
    """With the variable unset nothing is wrapped, hooked, imported or waiting for an import."""
    assert off.report["kinds"] == {
        name: "classmethod" if name == "ForwardBatch.init_new" else "function" for name in HOOKED
    }
    assert off.report["hooks"] == {"norm": 0, "model": 0}
    assert off.report["layers_to_capture"] == []
    assert off.report["modules"] == ["sitecustomize_shim"]
    assert not [name for name in off.report["meta_path"] if "sitecustomize_shim" in name]


def test_off_serves_what_a_server_without_the_package_serves(absent: Served, off: Served) -> None:
    """Tokens, logprobs and returned hidden states; the shim at start is all that is there more."""
    assert absent.answers == off.answers
    assert absent.report == {**off.report, "modules": []}


def test_blank_is_off(off: Served, blank: Served) -> None:
    """A variable of white space is as good as none, for what is hooked and for what is served."""
    assert blank.report == off.report
    assert blank.answers == off.answers


def test_on_serves_the_same(absent: Served, off: Served, on: Served) -> None:
    """Tokens, logprobs and returned hidden states are exactly those of a server without us."""
    assert set(on.answers) == {f"{kind}-{n}" for kind in _KINDS for n in LENGTHS}
    for rid, answer in absent.answers.items():
        assert on.answers[rid] == answer, rid
        assert off.answers[rid] == answer, rid
    states = on.answers["states-100"]["meta_info"]["hidden_states"]
    assert len(states) == 8
    assert len(on.answers["logprobs-100"]["meta_info"]["input_token_logprobs"]) == 100


def test_on_is_hooked_in_the_spawned_process(on: Served, dump_dir: Path) -> None:
    """The scheduler is a fresh interpreter: the start-up file installed the hooks there."""
    assert set(on.report["kinds"]) == set(HOOKED)
    assert "function" not in on.report["kinds"].values()
    assert not [name for name in on.report["meta_path"] if "sitecustomize_shim" in name]
    info = run_info(dump_dir)
    assert info["door"] == "pth"
    assert info["sglang_version"] == "0.5.23"
    assert info["model_class"] == "DeepseekV2ForCausalLM"
    assert sorted(".".join(name.split(".")[-2:]) for name in info["wrapped"]) == HOOKED


def test_on_captures_every_request(on: Served, dump_dir: Path, reference: Reference) -> None:
    """Default layers, and the post-norm state derived from the pre-norm one, equal transformers."""
    store = wait_for(dump_dir, on.answers)
    assert len(store) == len(on.answers)
    for rid in on.answers:
        length = int(rid.rpartition("-")[2])
        capture = store[rid]
        assert capture.metadata["final"] == ["pre_norm"]
        assert_exact(capture, prompt(length, length), reference, [1, 3, 4])


def test_the_run_has_ended_with_its_server(on: Served, dump_dir: Path) -> None:
    """After the server's end the status says so, and no half-written file is left."""
    ended = status(dump_dir)
    assert ended["state"] == "ended"
    assert ended["counters"]["captures"] == len(on.answers)
    assert ended["counters"]["open_records"] == 0
    assert not list(dump_dir.rglob("*.part"))
