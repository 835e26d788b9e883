"""Whole sessions of extract against stubs: real rings, writers and files; of SGLang only HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from capture_files import norm_weight
from capture_server import HIDDEN, CaptureServer, assert_complete
from hs_capture import open_store
from hs_capture.capture.batch import Request
from hs_capture.extract.extraction import Effort
from hs_capture.extract.plan import Summary
from hs_capture.extract.session import Session
from hs_capture.format.run import NormWeight, RunInfo
from hs_capture.samples import Sample, read_samples
from http_stub import Stub

NORM = norm_weight([1.0] * HIDDEN)
OTHER_NORM = norm_weight([1.0] * (HIDDEN - 3) + [2.0] * 3)
ONE_BY_ONE = Effort(concurrency=1)
Status = Callable[[str, str | None], int]
"""The method and the rid of a request, and the status that it is answered with."""


class Watched(Stub):
    """Answers as it is told to, and keeps what was asked and what was computed."""

    def __init__(self, server: CaptureServer, answer: Status | None) -> None:
        super().__init__(server, 0)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.log: list[str] = []
        """The method, the rid without the key of the store, and the status of each request."""
        self.computed: dict[str, Request] = {}
        self._answer = answer

    def status(self, method: str, rid: str | None) -> int:
        own = None if rid is None else rid.partition("-")[2]
        status = 200 if self._answer is None else self._answer(method, own)
        self.log.append(" ".join(map(str, filter(None, (method, own, status)))))
        return status

    def prefill(self, rid: str, input_ids: list[int]) -> Request:
        self.computed[rid] = super().prefill(rid, input_ids)
        return self.computed[rid]


@contextmanager
def serving(
    dump: Path, *, run_id: str, norm: NormWeight = NORM, answer: Status | None = None
) -> Iterator[Watched]:
    """A server that captures into `dump`, and whose model has this final norm."""
    capturing = CaptureServer(dump, run_id=run_id)
    path = capturing.run_dir / "run.json"
    replace(RunInfo.read(path), norm=norm).write(path)
    with capturing, Watched(capturing, answer) as stub:
        # SGLang answers long after its writer has begun.
        capturing.status()
        with answering(stub):
            yield stub


@contextmanager
def answering(stub: Watched) -> Iterator[None]:
    """Requests to `stub` are answered."""
    thread = threading.Thread(target=stub.serve_forever)
    thread.start()
    try:
        yield
    finally:
        stub.shutdown()
        thread.join()


def write_input(folder: Path, samples: int) -> list[list[int]]:
    """An input file; no two samples have the same tokens."""
    prompts = [[number % 64, number // 64, *range(number % 5)] for number in range(samples)]
    lines = [json.dumps({"input_ids": ids}) for ids in prompts]
    (folder / "in.jsonl").write_text("\n".join(lines))
    return prompts


def extract(
    folder: Path, *servers: tuple[Watched, Path], effort: Effort = ONE_BY_ONE
) -> tuple[Summary, Exception | None]:
    """One session on the input in `folder`, into the store `out`."""
    places = [(stub.url, dump) for stub, dump in servers]
    return Session(folder / "in.jsonl", None, (0, 1), places, folder / "out", effort).run()


def samples_of(output: Path) -> dict[str, Sample]:
    found = read_samples(output)
    assert found is not None
    return found


def is_sample(rid: str | None) -> bool:
    return rid is not None and not rid.startswith("probe")


def assert_stored_once(
    output: Path, prompts: list[list[int]], computed: dict[str, Request], without: int | None = None
) -> None:
    """All samples but `without` are in the store once, as they were computed."""
    store, samples = open_store(output), samples_of(output)
    numbers = [number for number in range(len(prompts)) if number != without]
    assert sorted(sample.number for sample in samples.values()) == numbers
    assert sorted(capture.rid for capture in store) == sorted(samples)
    for capture in store:
        assert capture.input_ids.tolist() == prompts[samples[capture.rid].number]
        assert_complete(capture, computed[capture.rid])
