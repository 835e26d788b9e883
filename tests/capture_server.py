"""The server's half of the pipeline without SGLang: real ring, real writer process, real files."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from typing_extensions import Self

from capture_files import METADATA, RUN, write_run
from harness import processes
from hs_capture import Capture, CaptureStore, open_store
from hs_capture.capture.batch import Batch, Request, Rows, batch_of
from hs_capture.capture.copier import HostCopier, split_planes
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload
from hs_capture.capture.tap import Tap
from hs_capture.format.index import IndexEntry, read_index
from hs_capture.format.metadata import CaptureMetadata, layer_stream
from hs_capture.format.run import Status
from hs_capture.ring.layout import EntryWord
from hs_capture.ring.message import StreamSpec
from hs_capture.ring.producer import Producer, Slot
from hs_capture.writer.config import TOKENS, WriterConfig

HIDDEN = 256
LAYERS = (1, 3, 4)
STREAMS = 4
ROW_BYTES = STREAMS * HIDDEN * 4
RING = 1 << 20
LONGEST = 2000
LONGEST_ANSWER = 300
SECONDS = 300.0
"""Longest time that anything here may take, on a slow machine that has much else to do."""

WRITER_HOST = Path(__file__).parent / "writer_host"
Extent = tuple[Request, int, int]


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for something that takes a moment."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, f"{what} has not come in {SECONDS} s"
        time.sleep(0.005)


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead: the signal alone only says that it will be."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        dead = select.poll()
        dead.register(process, select.POLLIN)
        assert dead.poll(SECONDS * 1000), f"process {pid} did not die in {SECONDS} s"
    finally:
        os.close(process)


def prompt(key: int, length: int, rid: str | None = None, cached: int = 0) -> Request:
    """A request whose token ids tell it apart."""
    ids = np.arange(length, dtype=np.int64) + 1000 * key
    return Request(key, f"r{key}" if rid is None else rid, ids, cached)


def talk(key: int, length: int, cached: int = 0) -> Request:
    """A request that generates, to whose `generated` tokens `say` adds."""
    return replace(prompt(key, length, cached=cached), generated=[])


def say(request: Request, count: int) -> None:
    """Have the request generate so many more tokens, which tell it apart."""
    assert isinstance(request.generated, list)
    done = len(request.generated)
    request.generated.extend(500_000 + 1000 * request.key + i for i in range(done, done + count))


def whole(request: Request) -> list[int]:
    """Prompt and answer, but for the last token, which no row is of."""
    return [*request.input_ids.tolist(), *list(request.generated or ())[:-1]]


def truth(request: Request, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The states of `request`, [T, streams, H]: the aux layers, then the final state.

    Of one that generates also those of any answer.
    """
    chance = torch.Generator().manual_seed(request.key + 1)
    shape = (request.num_tokens, STREAMS, HIDDEN)
    rows = torch.randn(shape, generator=chance)
    if request.generates:
        shape = (LONGEST_ANSWER, STREAMS, HIDDEN)
        rows = torch.cat([rows, torch.randn(shape, generator=chance)])
    return rows.to(dtype)


class LatePlanes(HostCopier):
    """What a GPU does, on the CPU: byte planes, and the ready word is set some time afterwards."""

    splits_planes = True
    finishes_later = True

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._region = producer.region
        self.seconds: float | None = 0.05
        """How long a copy takes; None for one that never arrives."""
        self._under_way: list[threading.Timer] = []

    def copy(
        self,
        slot: Slot,
        parts: Sequence[Rows],
        tensors: Sequence[torch.Tensor],
        whole: Sequence[torch.Tensor] = (),
        at: int = 0,
    ) -> None:
        rows = sum(part.stop - part.start for part in parts)
        staged = []
        for tensor in tensors:
            planes = torch.empty(tensor.itemsize, rows, tensor.shape[-1], dtype=torch.uint8)
            split_planes(tensor, parts, planes)
            staged.append(planes.flatten())
        arriving = torch.cat(staged)

        def arrive() -> None:
            target = torch.frombuffer(slot.payload, dtype=torch.uint8)
            target[: len(arriving)].copy_(arriving)
            super(LatePlanes, self).copy(slot, (), (), whole, at)
            self._region.words(slot.position % self._region.capacity)[EntryWord.READY] = 1

        if self.seconds is not None:
            timer = threading.Timer(self.seconds, arrive)
            timer.start()
            self._under_way.append(timer)

    def finish(self) -> None:
        """Wait until the last copy is done."""
        for timer in self._under_way:
            timer.join()


class CaptureServer:
    """Sends batches as a server does. Leaving the block is the server's end."""

    def __init__(
        self,
        dump: Path,
        *,
        buffer: int = RING,
        block: bool = True,
        timeout: float = SECONDS,
        dtype: str = "float32",
        reserve: int = 0,
        late_planes: bool = False,
        run_id: str = RUN.run_id,
        environ: Mapping[str, str] | None = None,
        follows_decode: bool = False,
    ) -> None:
        """`environ` is for the writer alone; see `writer_host`."""
        self.follows_decode = follows_decode
        run = replace(RUN, run_id=run_id, hidden_size=HIDDEN, dtype=dtype, layer_ids=LAYERS)
        self.dump = dump
        self.run_dir = write_run(dump, run)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.producer = Producer(buffer)
        self.copier: HostCopier = (
            LatePlanes(self.producer) if late_planes else HostCopier(self.producer)
        )
        names = [*map(layer_stream, LAYERS), "final.pre_norm"]
        states = tuple(StreamSpec(name, dtype, HIDDEN) for name in names)
        self.streams = (TOKENS, *states) if follows_decode else states
        metadata = replace(
            METADATA,
            hidden_size=HIDDEN,
            dtype=dtype,
            layer_ids=LAYERS,
            final=("pre_norm",),
            run_id=run_id,
        )
        self.mark = secrets.token_hex(8)
        self.config = WriterConfig(
            ring=-1,
            bell=-1,
            run_dir=str(self.run_dir),
            rank="tp0",
            file_mode=0o600,
            reserve_bytes=reserve,
            workers=2,
            server_pid=os.getpid(),
            streams=self.streams,
            splits_planes=self.copier.splits_planes,
            metadata=_of_run(metadata),
        )
        self.launcher = WriterLauncher(
            self.producer,
            self.config,
            {**os.environ, **(environ or {}), processes.MARK: self.mark},
        )
        self.tap = Tap(
            self.producer,
            self.launcher,
            self.streams,
            self.copier,
            Overload(block, timeout),
            LONGEST,
        )

    def __enter__(self) -> Self:
        self.launcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.launcher.hang_up()
        if isinstance(self.copier, LatePlanes):
            self.copier.finish()
        if error is not None:
            # The writer may be frozen; the error is what is to be seen.
            for pid in self.writers():
                kill(pid)
        left = processes.wait_until_gone(-1, self.mark, SECONDS)
        for process in left:
            os.kill(process.pid, signal.SIGKILL)
        os.close(self.producer.descriptor)
        assert not left, "the writer did not end"

    def prefill(self, *extents: Extent, padding: int = 0) -> Batch:
        """Run one forward pass of (request, prefix length, extend length)."""
        batch = batch_of(extents)
        self.tap.capture(batch, self.states(*extents, padding=padding))
        return batch

    def states(self, *extents: Extent, padding: int = 0) -> list[torch.Tensor]:
        """What the model hands over: the aux layers are strided views of one packed tensor."""
        rows = [self._rows(*extent) for extent in extents]
        rows.append(torch.full((padding, STREAMS, HIDDEN), torch.nan, dtype=self.dtype))
        flat = torch.cat(rows).reshape(-1, STREAMS * HIDDEN)
        states = [*torch.split(flat, HIDDEN, dim=-1)]
        if not self.follows_decode:
            return states
        ids = [self._ids(*extent) for extent in extents]
        return [torch.cat([*ids, torch.zeros(padding, 1).long()]), *states]

    def _ids(self, request: Request, prefix: int, extend: int) -> torch.Tensor:
        """The tokens that these rows are computed of, [rows, 1]; zeros beyond what was said."""
        known = [*request.input_ids.tolist(), *(request.generated or ()), *[0] * extend]
        return torch.tensor(known[prefix : prefix + extend]).unsqueeze(1)

    def converse(self, *requests: Request, steps: int, closes: bool = True) -> None:
        """Prefill these prompts, decode so many tokens of each, all in step, and say that it ends.

        As overlap scheduling does it: when SGLang sees a token, the pass with it has been started.
        """
        self.prefill(*((request, 0, request.num_tokens) for request in requests))
        for number in range(steps):
            for request in requests:
                say(request, 1)
            if number < steps - 1 or not closes:
                self.prefill(*((r, r.num_tokens + number, 1) for r in requests))
        if closes:
            self.prefill(*((r, r.num_tokens + steps - 1, 1) for r in requests if steps))
            for request in requests:
                self.tap.finish(request, request.generated or (), None)

    def _rows(self, request: Request, prefix: int, extend: int) -> torch.Tensor:
        """Rows beyond the prompt belong to generated tokens: nobody may store them."""
        known = truth(request, self.dtype)[prefix : prefix + extend]
        beyond = torch.full((extend - len(known), STREAMS, HIDDEN), torch.inf, dtype=self.dtype)
        return torch.cat([known, beyond])

    @property
    def drained(self) -> bool:
        """Whether the writer needs nothing in the ring any more."""
        return self.producer.free == self.producer.region.capacity

    def wait_drained(self) -> None:
        """Wait until the writer has stored all that was sent."""
        wait_until(lambda: self.drained, "an empty ring")

    @property
    def minds_a_writer(self) -> bool:
        """Whether the launcher has a writer, and that one lives."""
        with self.launcher._lock:
            if self.launcher._bell < 0:
                return False
            dies = select.poll()
            dies.register(self.launcher._bell, 0)
            return not dies.poll(0)

    def writer_pid(self) -> int:
        """The process id of the writer that runs now, and that the launcher has taken note of."""
        wait_until(lambda: self.minds_a_writer and len(self.writers()) == 1, "one writer")
        return self.writers()[0]

    def writers(self) -> list[int]:
        """The process ids of all writers that run. What starts one leads the session it is in."""
        marked = processes.of_server(-1, self.mark)
        return [process.pid for process in marked if process.session != process.pid]

    def stop_writer(self) -> int:
        """Freeze the writer; the ring then fills up."""
        pid = self.writer_pid()
        os.kill(pid, signal.SIGSTOP)
        return pid

    def kill_writer(self) -> None:
        """Kill the writer, as a machine short of memory does, and wait for the next one."""
        kill(self.writer_pid())
        wait_until(lambda: self.minds_a_writer, "another writer")

    def counter(self, name: str) -> int:
        """What the server has counted."""
        return self.producer.region.counters()[name]

    def status(self) -> Status:
        """The writer's status file, which is there some time after the writer."""
        path = self.run_dir / "status-tp0.json"
        wait_until(path.exists, "the status file")
        return Status.read(path)

    def index(self) -> list[IndexEntry]:
        """The lines of the index, which is there some time after the writer."""
        path = self.run_dir / "index-tp0.jsonl"
        wait_until(path.exists, "the index")
        return read_index(path)

    def store(self) -> CaptureStore:
        """What a reader sees."""
        return open_store(self.dump)


def assert_rows(capture: Capture, request: Request, start: int, stop: int) -> None:
    """Rows [start, stop) of the capture are the request's own, bit for bit."""
    expected = truth(request, capture.dtype)[start:stop]
    assert torch.equal(capture.aux_hidden_states((start, stop)), expected[:, :-1])
    assert torch.equal(capture.last_hidden_states("pre_norm", (start, stop)), expected[:, -1])
    assert capture.input_ids.tolist() == whole(request)
    assert capture.rid == request.rid
    assert capture.prompt_tokens == request.num_tokens


def assert_complete(capture: Capture, request: Request) -> None:
    """The capture holds all rows of `request`."""
    assert (capture.complete, capture.incomplete_reason, capture.missing) == (True, None, [])
    assert capture.num_tokens == len(whole(request))
    assert_rows(capture, request, 0, capture.num_tokens)


def assert_incomplete(
    capture: Capture, request: Request, reason: str, missing: list[tuple[int, int]]
) -> None:
    """The capture says what is missing and why; the rest is right."""
    assert (capture.complete, capture.incomplete_reason) == (False, reason)
    assert capture.missing == missing
    at = 0
    for start, stop in [*missing, (capture.num_tokens, 0)]:
        if at < start:
            assert_rows(capture, request, at, start)
        at = stop


def _of_run(metadata: CaptureMetadata) -> dict[str, object]:
    """The part of the metadata that is the same for every capture."""
    own = {"rid", "sequence", "num_tokens", "complete", "incomplete_reason", "missing"}
    own |= {"key", "weights_version", "lora", "links", "prompt_tokens", "rows_behind"}
    fields = json.loads(json.dumps(asdict(metadata)))
    return {name: fields[name] for name in fields if name not in {*own, "captured_at"}}
