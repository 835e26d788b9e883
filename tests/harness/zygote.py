"""A process that has imported SGLang once, and forks a server in seconds each time it is asked.

Run as a script it reads one JSON request a line and answers each with one line:

    {"op": "start", "arguments": [...], "environment": {...}, "log": path, "mounts": [[...], ...]}
        -> {"pid": pid}; the server runs in its own session and, if mounts are given, in a private
           mount namespace in which those commands have run
    {"op": "poll", "pid": pid} -> {"exit": null, an exit code, or a negative signal number}

It ends at the end of its input, and takes the servers it still has with it.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any

_CLONE_NEWNS = 0x00020000


def main() -> None:
    """Import SGLang, say so, then serve requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what SGLang prints must not get between the answers
    _import_everything_a_server_needs()
    running: set[int] = set()
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "start":
            pid = _fork(request, answers.fileno())
            running.add(pid)
            reply: dict[str, Any] = {"pid": pid}
        else:
            ended, status = os.waitpid(request["pid"], os.WNOHANG)
            running.discard(ended)
            reply = {"exit": os.waitstatus_to_exitcode(status) if ended else None}
        print(json.dumps(reply), file=answers)
    for pid in running:
        os.killpg(pid, signal.SIGKILL)


def _import_everything_a_server_needs() -> None:
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.model_executor.model_runner
    import sglang.srt.models.registry  # noqa: F401

    # SGLang asks for "spawn", which would import everything again in each of its processes.
    # Servers started without this script do that; here the children inherit the imports.
    set_start_method = multiprocessing.set_start_method

    def keep_fork(method: str | None, force: bool = False) -> None:
        set_start_method("fork" if method == "spawn" else method, force=force)

    multiprocessing.set_start_method = keep_fork


def _fork(request: dict[str, Any], answers: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.close(answers)
        _redirect(request["log"])
        if request["mounts"]:
            _enter_private_mounts(request["mounts"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _serve(request["arguments"])
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(file)


def _enter_private_mounts(commands: list[list[str]]) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare of the mount namespace")
    for command in (["mount", "--make-rprivate", "/"], *commands):
        subprocess.run(command, check=True)


def _serve(arguments: list[str]) -> None:
    """Do what ``python -m sglang.launch_server`` does."""
    import probes
    import stand_ins
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    stand_ins.install()
    probes.install()
    load_plugins()
    try:
        run_server(prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
