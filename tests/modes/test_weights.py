"""Weights that change under a capture: each record is of one version of them, or says why not."""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.captures import run_folder, run_info, wait_for, wait_until
from harness.client import RefusedError, generate, post
from harness.compare import TOLERANCE, assert_exact, errors
from harness.launching import Zygote
from harness.prompts import prompt
from harness.reference import Reference
from harness.server import Serve, Server, ServerConfig
from harness.tiny_model import build_tiny_model
from hs_capture import Capture, open_store
from hs_capture.format.run import NormWeight
from hs_capture.tensors import to_tensor

LAYERS = [1, 3]
CHUNK = 16
LONG = 1000
NUMBERS = count()
"""For prompts and rids that no other test has."""


@pytest.fixture(scope="module")
def server(serve: Serve, zygote: Zygote, model: Path, dump_dir: Path) -> Iterator[Server]:
    environment = {
        "SGLANG_HS_DUMP_DIR": str(dump_dir),
        "SGLANG_HS_BUFFER": "16M",
        "SGLANG_HS_LAYERS": "1,3",
    }
    with serve(zygote, ServerConfig(model, environment, chunk=CHUNK)) as server:
        yield server


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same model, the final norm's among them."""
    return build_tiny_model(tmp_path_factory.mktemp("other") / "tiny", seed=7)


@pytest.fixture(scope="module")
def other_reference(other_model: Path) -> Reference:
    return Reference(other_model)


@pytest.fixture
def version(server: Server, dump_dir: Path, model: Path, reference: Reference) -> int:
    """The version of the weights now, which are those of the model."""
    update(server, model)
    return captured(server, dump_dir, reference).weights_version


def test_rows_and_norm_are_of_the_weights_that_serve(
    server: Server,
    dump_dir: Path,
    model: Path,
    other_model: Path,
    version: int,
    reference: Reference,
    other_reference: Reference,
) -> None:
    """Before, after, and after one more change; the state after the norm is derived each time."""
    assert not reference.norm_weight.equal(other_reference.norm_weight)
    update(server, other_model)
    assert captured(server, dump_dir, other_reference).weights_version == version + 1
    update(server, model)
    after = captured(server, dump_dir, reference)
    assert after.weights_version == after.metadata["weights_version"] == version + 2
    assert after.run is not None
    for later, expected in ((1, other_reference), (2, reference)):
        norm = after.run.norm_of(version + later)
        assert norm is not None
        assert to_tensor(norm.weight(), norm.dtype).equal(expected.norm_weight)


def test_the_server_starts_with_version_0(
    server: Server, dump_dir: Path, reference: Reference
) -> None:
    """Its norm is where that of a server whose weights never change is."""
    info = run_info(dump_dir)
    norm = NormWeight.from_object(info["norm"], "norm")
    assert to_tensor(norm.weight(), norm.dtype).equal(reference.norm_weight)
    assert "0" not in info["norms"]


def test_a_failed_update_changes_nothing(
    server: Server, dump_dir: Path, tmp_path: Path, version: int, reference: Reference
) -> None:
    """A record that is open meanwhile goes on, too."""
    rid, tokens = f"failed-{next(NUMBERS)}", prompt(next(NUMBERS), LONG)
    with paused_midway(server, dump_dir, rid, tokens), pytest.raises(RefusedError, match="Failed"):
        update(server, tmp_path / "nothing")
    capture = wait_for(dump_dir, [rid])[rid]
    assert_exact(capture, tokens, reference, LAYERS)
    assert capture.weights_version == version
    assert captured(server, dump_dir, reference).weights_version == version


def test_a_record_that_spans_a_change_has_only_the_rows_before_it(
    server: Server, dump_dir: Path, other_model: Path, version: int, reference: Reference
) -> None:
    """SGLang goes on with the prompt and the old keys; those rows are of neither weights."""
    rid, tokens = f"spans-{next(NUMBERS)}", prompt(next(NUMBERS), LONG)
    with paused_midway(server, dump_dir, rid, tokens):
        update(server, other_model, flush_cache=False)
    capture = wait_for(dump_dir, [rid])[rid]
    assert (capture.complete, capture.incomplete_reason) == (False, "weights_changed")
    assert capture.weights_version == version
    ((start, stop),) = capture.missing
    assert stop == LONG
    assert 0 < start < LONG
    assert start % CHUNK == 0
    assert max(errors(capture, tokens, reference, rows=(0, start)).values()) <= TOLERANCE
    assert len(open_store(dump_dir).captures(rid)) == 1


def test_what_follows_on_a_cache_of_other_weights_is_not_captured(
    server: Server,
    dump_dir: Path,
    other_model: Path,
    version: int,
    reference: Reference,
    other_reference: Reference,
) -> None:
    """Until the cache is emptied, rows behind a cached prefix are of neither weights."""
    tokens = prompt(next(NUMBERS), 40)
    captured(server, dump_dir, reference, tokens)
    update(server, other_model, flush_cache=False)
    fresh = captured(server, dump_dir, other_reference)
    assert fresh.weights_version == version + 1
    mixed = sent(server, dump_dir, tokens)
    assert (mixed.complete, mixed.incomplete_reason) == (False, "weights_changed")
    assert mixed.missing == [(0, 40)]
    update(server, other_model)
    assert captured(server, dump_dir, other_reference, tokens).weights_version == version + 2


def test_a_cached_prefix_is_of_the_weights_that_serve(
    server: Server,
    dump_dir: Path,
    other_model: Path,
    version: int,
    reference: Reference,
    other_reference: Reference,
) -> None:
    """Rows in slots that were computed with earlier weights are nobody's, others are found."""
    tokens = prompt(next(NUMBERS), 40)
    captured(server, dump_dir, reference, tokens)
    update(server, other_model)
    computed = captured(server, dump_dir, other_reference, tokens)
    assert computed.metadata["sources"] == []
    hit = captured(server, dump_dir, other_reference, tokens)
    assert hit.weights_version == version + 1
    assert [source["rid"] for source in hit.metadata["sources"]] == [computed.rid]


def test_weights_that_come_as_tensors(
    server: Server, dump_dir: Path, other_model: Path, version: int, other_reference: Reference
) -> None:
    """They come in several calls, between which nothing is captured; all are one change."""
    weights = sorted(load_file(other_model / "model.safetensors").items())
    post(f"{server.url}/begin_weight_update", {})
    for part in (weights[::2], weights[1::2]):
        update_from_tensors(server, part)
        between = sent(server, dump_dir, prompt(next(NUMBERS), 20))
        assert (between.incomplete_reason, between.missing) == ("weights_changed", [(0, 20)])
    update_from_tensors(server, weights[:1])
    post(f"{server.url}/end_weight_update", {})
    assert captured(server, dump_dir, other_reference).weights_version == version + 1


def test_tensors_that_are_refused_change_nothing(
    server: Server, dump_dir: Path, model: Path, version: int, reference: Reference
) -> None:
    """SGLang wants them announced."""
    weights = list(load_file(model / "model.safetensors").items())
    with pytest.raises(RefusedError, match="begin_weight_update"):
        update_from_tensors(server, weights)
    with pytest.raises(RefusedError, match="begin_weight_update"):
        post(f"{server.url}/end_weight_update", {})
    assert captured(server, dump_dir, reference).weights_version == version


def update(server: Server, model: Path, **fields: Any) -> None:
    post(f"{server.url}/update_weights_from_disk", {"model_path": str(model), **fields})


def update_from_tensors(server: Server, weights: list[tuple[str, torch.Tensor]]) -> None:
    tensors = base64.b64encode(pickle.dumps(weights)).decode()
    body = {"serialized_named_tensors": [tensors]}
    post(f"{server.url}/update_weights_from_tensor", body)


def sent(server: Server, dump_dir: Path, tokens: list[int]) -> Capture:
    """Return the capture of a prompt under a rid that no other has."""
    rid = f"sent-{next(NUMBERS)}"
    assert len(generate(server.url, tokens, rid)["output_ids"]) == 1
    capture: Capture = wait_for(dump_dir, [rid])[rid]
    return capture


def captured(
    server: Server, dump_dir: Path, reference: Reference, tokens: list[int] | None = None
) -> Capture:
    """Return the capture of a prompt, by default a new one, which equals the reference."""
    tokens = prompt(next(NUMBERS), 40) if tokens is None else tokens
    capture = sent(server, dump_dir, tokens)
    assert_exact(capture, tokens, reference, LAYERS)
    return capture


@contextmanager
def paused_midway(server: Server, dump_dir: Path, rid: str, tokens: list[int]) -> Iterator[None]:
    """A block in which SGLang is paused in the middle of a prompt; afterwards it goes on."""
    request = threading.Thread(target=generate, args=(server.url, tokens, rid))
    request.start()
    opened = wait_until(lambda: list((run_folder(dump_dir) / "open").iterdir()), bool)
    post(f"{server.url}/pause_generation", {"mode": "in_place"})
    try:
        assert opened
        yield
    finally:
        post(f"{server.url}/continue_generation", {})
        request.join(120)
    assert not request.is_alive()
