"""One real SGLang HTTP server on the CPU: its start, its log, its end."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness import client, processes
from harness.launching import Launched, Launcher, Mounts, host_environment

# How long each may take on a slow machine that has much else to do.
START_SECONDS = 900.0
STOP_SECONDS = 180.0
# The writer may finish what is in its ring after the server has gone.
AFTERLIFE_SECONDS = 180.0
# SGLang itself leaves small segments of these names when it ends: what each scheduler says of its
# load, and the queue between the schedulers of several ranks.
SGLANG_LEFTOVERS = ("sglang_loads_", "sgl_shm_mq_")


class ServerEndedError(Exception):
    """The server ended when it should have been serving. The message holds its log."""

    def __init__(self, exit_code: int, log: str) -> None:
        super().__init__(f"the server ended with {exit_code}; its log:\n{log}")
        self.exit_code = exit_code
        self.log = log


@dataclass(frozen=True)
class ServerConfig:
    """What to serve, and how.

    Attributes:
        model: folder of the model.
        environment: variables for hs-capture and for the probes; none of them means capture off.
        chunk: prefill chunk in tokens; -1 means prompts are not cut.
        dtype: what SGLang computes in.
        arguments: more arguments for SGLang.
        warmup: whether SGLang sends itself a request when it has started.
        mounts: commands to run first in a private mount namespace.
        port: where to serve; None is a free one. A server that comes back needs the same.
    """

    model: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 16
    dtype: str = "float32"
    arguments: Sequence[str] = ()
    warmup: bool = False
    mounts: Mounts = ()
    port: int | None = None

    def command_line(self, port: int) -> list[str]:
        """Return the arguments of ``sglang.launch_server``."""
        options = {
            "--model-path": self.model,
            "--host": "127.0.0.1",
            "--port": port,
            "--device": "cpu",
            "--dtype": self.dtype,
            "--attention-backend": "torch_native",
            "--chunked-prefill-size": self.chunk,
            "--max-total-tokens": 16384,
            "--mem-fraction-static": 0.3,
        }
        flags = ["--skip-tokenizer-init", "--disable-cuda-graph"]
        if not self.warmup:
            flags.append("--skip-server-warmup")
        pairs = [text for pair in options.items() for text in map(str, pair)]
        return [*pairs, *flags, *self.arguments]


class Server:
    """A server that was started, serving or not."""

    def __init__(self, launcher: Launcher, config: ServerConfig, log: Path) -> None:
        self.config = config
        self.log_path = log
        self.port = config.port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mark = f"{processes.RUN}.{uuid.uuid4().hex}"
        environment = host_environment({**config.environment, processes.MARK: self.mark})
        self._process: Launched = launcher.launch(
            config.command_line(self.port), environment, log, config.mounts
        )

    @property
    def pid(self) -> int:
        """The process id of the HTTP server, the parent of SGLang's other processes."""
        return self._process.pid

    def log(self) -> str:
        """Return all that the server has printed so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_until_serving(
        self, seconds: float = START_SECONDS, waiting: Callable[[], None] | None = None
    ) -> None:
        """Wait until requests are answered. Looks in a way that runs no forward.

        ``waiting`` is called a few times a second.

        Raises:
            ServerEndedError: it ended.
            TimeoutError: it did neither in ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise ServerEndedError(code, self.log())
            try:
                client.get(f"{self.url}/model_info")
            except (OSError, client.RefusedError):
                if waiting is not None:
                    waiting()
                time.sleep(0.1)
            else:
                return
        raise TimeoutError(f"not serving after {seconds:.0f} s; the log:\n{self.log()}")

    def wait_until_ended(self, seconds: float = START_SECONDS) -> int:
        """Wait until the server process has ended, and return its exit code.

        Raises:
            TimeoutError: it still runs after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                return code
            time.sleep(0.05)
        raise TimeoutError(f"still running after {seconds:.0f} s; the log:\n{self.log()}")

    def stop(self) -> None:
        """Ask the server to end, and make sure that nothing of it is left.

        Raises:
            AssertionError: a process or a shared-memory file was left. It is removed all the same.
        """
        segments = self._segments()
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
            try:
                self.wait_until_ended(STOP_SECONDS)
            except TimeoutError:
                self.kill()
                raise
        left = processes.wait_until_gone(self.pid, self.mark, AFTERLIFE_SECONDS)
        self.kill()
        assert not left, f"left behind: {[str(process) for process in left]}\n{self.log()}"
        remaining = _remove(segments)
        assert not remaining, f"left in /dev/shm: {remaining}"

    def kill(self, spare_the_writer: bool = False) -> None:
        """End whatever of the server still runs, at once, as the kernel's OOM killer would.

        With ``spare_the_writer`` our writer process, which has a session of its own, goes on.
        """
        segments = self._segments()
        for process in processes.of_server(self.pid, self.mark):
            if process.session == self.pid or not spare_the_writer:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        # A child that nobody has waited for is an error of its own, later and elsewhere.
        self.wait_until_ended(STOP_SECONDS)
        _remove(segments)

    def _segments(self) -> set[Path]:
        return processes.shared_memory(self.pid, self.mark)


def _remove(segments: set[Path]) -> list[str]:
    """Remove these segments; return the names of those that SGLang does not leave by itself."""
    left = [segment for segment in segments if segment.exists()]
    for segment in left:
        segment.unlink(missing_ok=True)
    return sorted(str(path) for path in left if not path.name.startswith(SGLANG_LEFTOVERS))


Serve = Callable[[Launcher, ServerConfig], AbstractContextManager[Server]]


@contextmanager
def serving(
    launcher: Launcher,
    config: ServerConfig,
    log: Path,
    waiting: Callable[[], None] | None = None,
) -> Iterator[Server]:
    """Start a server, hand it over when it serves, and stop it with nothing left."""
    server = Server(launcher, config, log)
    try:
        server.wait_until_serving(waiting=waiting)
        yield server
    except BaseException:
        server.kill()
        raise
    server.stop()


def _free_port() -> int:
    """Find a port below those that the kernel hands out by itself, so that it stays free."""
    while True:
        port = random.SystemRandom().randint(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
