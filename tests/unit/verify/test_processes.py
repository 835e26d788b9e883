"""Running servers: real processes, known by their command lines, judged by their environments."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hs_capture.format.run import Refusal
from hs_capture.verify.processes import Process, find_servers, started_at
from hs_capture.verify.report import Check
from hs_capture.verify.servers import look_at_server

Verify = Callable[..., Any]
NewRun = Callable[..., Path]
# Two runs of these tests on one machine must not find each other's servers.
TITLE = f"hs-test-{os.getpid()}::"
SERVER = f"hs_test_{os.getpid()}.launch_server"
MARKS = (TITLE, SERVER)
MANY = "SGLANG_HS_WORKERS='many' is not accepted: give a whole number from 1 to 256"
LEFT_OUT = "SGLANG_PLUGINS leaves out hs_capture"
WAIT = "import sys; print('up', flush=True); sys.stdin.read()"


@contextmanager
def running(
    *arguments: str,
    code: str = WAIT,
    options: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[int]:
    """A Python that waits, with `arguments` on its command line; ended by closing its input."""
    process = subprocess.Popen(
        [sys.executable, *options, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], **(environ or {})},
        cwd=cwd,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process.pid
    finally:
        process.communicate(timeout=300)


def judge(
    pid: int, dump: Path | None, installed: float | None = None, marks: tuple[str, ...] = MARKS
) -> Check:
    """What verify says of the server that began with process `pid`."""
    (server,) = [server for server in find_servers(marks) if server.root.pid == pid]
    return look_at_server(server, dump, (), installed).check


def test_a_server_is_known_by_its_command_line(dump: Path) -> None:
    with running(SERVER, environ={"SGLANG_HS_DUMP_DIR": str(dump)}) as pid:
        (server,) = find_servers(MARKS)
        assert server.root.pid == pid
        assert server.pids == {pid}
        assert server.environ is not None
        assert server.environ["SGLANG_HS_DUMP_DIR"] == str(dump)
    assert find_servers(MARKS) == []


def test_a_server_and_its_scheduler_are_one_and_the_title_hides_no_environment(
    dump: Path,
) -> None:
    child = f"import setproctitle; setproctitle.setproctitle('{TITLE}scheduler'); " + WAIT
    code = (
        "import subprocess, sys; "
        "p = subprocess.Popen([sys.executable, '-c', sys.argv[2]], stdin=subprocess.PIPE); "
        "sys.stdin.read(); p.communicate()"
    )
    environ = {"SGLANG_HS_DUMP_DIR": str(dump)}
    with running(SERVER, child, code=code, environ=environ) as pid:
        (server,) = find_servers(MARKS)
        assert server.root.pid == pid
        assert len(server.pids) == 2
        assert server.environ is not None
        assert server.environ["SGLANG_HS_DUMP_DIR"] == str(dump)


def test_a_scheduler_whose_title_overwrote_its_environment_is_not_accused(dump: Path) -> None:
    code = f"import setproctitle; setproctitle.setproctitle('{TITLE}scheduler'); " + WAIT
    with running(code=code, environ={"SGLANG_HS_DUMP_DIR": str(dump)}) as pid:
        check = judge(pid, dump)
    assert (check.state, check.text) == (
        "warn",
        "not attached here; its environment cannot be read",
    )


def test_programs_that_only_name_a_server_are_none() -> None:
    word = f"600.{os.getpid()}"
    with ExitStack() as stack:
        process = subprocess.Popen(["sleep", word], executable="sleep")
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert find_servers((f"sleep {word}", SERVER)) == []


def test_this_process_and_its_ancestors_are_no_servers() -> None:
    code = (
        "import sys; from hs_capture.verify.processes import find_servers; "
        "print(len(find_servers(sys.argv[1:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, SERVER],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "0\n"


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_server_without_the_variable_is_told_what_is_missing(
    dump: Path, value: str | None
) -> None:
    environ = {} if value is None else {"SGLANG_HS_DUMP_DIR": value}
    with running(SERVER, environ=environ) as pid:
        check = judge(pid, dump)
        late = judge(pid, dump, installed=2e9)
    assert (check.state, check.text) == ("fail", "runs without SGLANG_HS_DUMP_DIR")
    assert late.text == "runs without SGLANG_HS_DUMP_DIR and is older than the installation"


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"SGLANG_HS_DUMPDIR": "/dump"}, "SGLANG_HS_DUMPDIR (did you mean SGLANG_HS_DUMP_DIR?)"),
        (
            {"SGLANG_HS_RIDS": "a*", "SGLANG_HS_QQQQQQQQQQQQQQQQQQQQQQQQQQ": "1"},
            "SGLANG_HS_QQQQQQQQQQQQQQQQQQQQQQQQQQ, SGLANG_HS_RIDS",
        ),
    ],
)
def test_a_server_with_a_mistyped_variable_is_told_its_name(
    dump: Path, environ: dict[str, str], names: str
) -> None:
    with running(SERVER, environ=environ) as pid:
        check = judge(pid, dump)
    assert (check.state, check.text) == (
        "fail",
        "runs without SGLANG_HS_DUMP_DIR, so nothing is captured, whatever else is set: " + names,
    )


def test_a_server_that_captures_elsewhere_is_shown_with_the_place(
    dump: Path, tmp_path: Path
) -> None:
    environ = {"SGLANG_HS_DUMP_DIR": "elsewhere"}
    with running(SERVER, environ=environ, cwd=tmp_path) as pid:
        check = judge(pid, dump)
    assert (check.state, check.text) == (
        "warn",
        f"captures into {tmp_path}/elsewhere, not into {dump}",
    )
    assert check.hint == f"look there: --dump-dir {tmp_path}/elsewhere"


@pytest.mark.parametrize(
    ("environ", "options", "installed", "reason"),
    [
        ({}, (), None, "it is not attached (yet)"),
        ({}, (), 2e9, "it started before hs-capture was installed"),
        (
            {"SGLANG_HS_WORKERS": "many"},
            (),
            None,
            f"its settings are refused: {MANY}",
        ),
        (
            {"SGLANG_PLUGINS": "other"},
            (),
            None,
            f"it is not attached, and {LEFT_OUT}",
        ),
        (
            {"SGLANG_PLUGINS": "other"},
            ("-IS",),
            None,
            f"it runs with -S, which skips start-up files, and {LEFT_OUT}",
        ),
        ({"SGLANG_PLUGINS": "other,hs_capture"}, ("-S",), None, "it is not attached (yet)"),
    ],
)
def test_a_server_that_should_capture_and_does_not_is_told_why(
    dump: Path,
    environ: dict[str, str],
    options: tuple[str, ...],
    installed: float | None,
    reason: str,
) -> None:
    environ = {"SGLANG_HS_DUMP_DIR": f"{dump}/", **environ}
    with running(SERVER, environ=environ, options=options) as pid:
        check = judge(pid, dump, installed)
    assert (check.state, check.text) == ("fail", f"should capture into {dump}, but {reason}")
    assert check.hint


def test_a_server_that_loads_its_model_is_said_to_start_and_nobody_is_told_to_start_one(
    verify: Verify, tmp_path: Path
) -> None:
    place = tmp_path / "later" / "dump"
    with running("sglang.launch_server", environ={"SGLANG_HS_DUMP_DIR": str(place)}) as pid:
        answer = verify(directory=place)
    assert (answer.exit_code, answer.said["verdict"]) == (2, "not attached")
    assert answer.said["summary"] == (
        f"no server captures here yet; server {pid} is starting: run verify again in a while"
    )
    assert answer.check("directory") == {
        "name": "directory",
        "state": "warn",
        "text": f"{place} does not exist yet; server {pid} makes it when it has loaded its model",
        "hint": "",
    }
    assert answer.check("attached")["hint"] == (
        f"run verify again when server {pid} has loaded its model"
    )
    hints = [check["hint"] for check in answer.said["checks"] if check["state"] != "ok"]
    assert not [hint for hint in hints if "start the server" in hint or "server starts" in hint]
    assert not place.exists()


def test_several_servers_that_load_their_models_are_counted(verify: Verify, dump: Path) -> None:
    environ = {"SGLANG_HS_DUMP_DIR": str(dump)}
    with (
        running("sglang.launch_server", environ=environ),
        running("sglang.launch_server", environ=environ),
    ):
        answer = verify()
    assert answer.said["summary"].startswith("no server captures here yet; 2 servers are starting")


def test_a_server_whose_settings_are_refused_is_not_said_to_start(
    verify: Verify, dump: Path
) -> None:
    environ = {"SGLANG_HS_DUMP_DIR": str(dump), "SGLANG_HS_WORKERS": "many"}
    with running("sglang.launch_server", environ=environ):
        answer = verify()
    assert answer.said["summary"] == "no server captures here; the lines that say fail tell why"


@pytest.mark.parametrize(
    ("refused", "state", "summary"),
    [
        (-60, "warn", "no server captures here yet; server {} is starting: "),
        (60, "fail", "no server captures here; the lines that say fail tell why"),
    ],
)
def test_a_server_is_starting_only_if_no_start_was_refused_since_it_began(
    verify: Verify, dump: Path, refused: float, state: str, summary: str
) -> None:
    with running("sglang.launch_server", environ={"SGLANG_HS_DUMP_DIR": str(dump)}) as pid:
        refusal = Refusal(time.time() + refused, pid, "0.5.23", "no")
        refusal.write(dump / "last-refusal.json")
        answer = verify()
    assert answer.exit_code == 2
    assert answer.check("start refused")["state"] == state
    assert answer.said["summary"].startswith(summary.format(pid))


def test_a_server_with_a_run_here_is_attached(verify: Verify, new_run: NewRun, dump: Path) -> None:
    with running("sglang.launch_server", environ={"SGLANG_HS_DUMP_DIR": str(dump)}) as pid:
        new_run(captures=1, server_pid=pid)
        answer = verify()
    assert answer.exit_code == 0
    check = answer.check(f"server {pid}")
    assert (check["state"], check["text"]) == ("ok", "attached, run run-a")


def test_a_server_that_should_capture_here_and_does_not_outweighs_an_ended_run(
    verify: Verify, new_run: NewRun, dump: Path
) -> None:
    new_run(captures=1, state="ended", created=1000.0)
    assert verify().exit_code == 0
    with running("sglang.launch_server", environ={"SGLANG_HS_DUMP_DIR": str(dump)}) as pid:
        answer = verify()
    assert answer.exit_code == 2
    assert answer.check(f"server {pid}")["state"] == "fail"


def test_a_server_that_is_not_meant_to_capture_does_not_spoil_an_ended_run(
    verify: Verify, new_run: NewRun
) -> None:
    new_run(captures=1, state="ended", created=1000.0)
    with running("sglang.launch_server") as pid:
        answer = verify()
    assert answer.exit_code == 0
    assert answer.check(f"server {pid}")["state"] == "warn"
    assert answer.said["summary"] == (
        f"the hook fired and the captures are sound; server {pid} runs and does not capture"
    )


@pytest.mark.parametrize("captures", [0, 1])
def test_a_server_that_captures_elsewhere_is_in_the_summary_of_an_ended_run(
    verify: Verify, new_run: NewRun, tmp_path: Path, captures: int
) -> None:
    new_run(captures=captures, state="ended", created=1000.0)
    place = tmp_path / "elsewhere"
    with running("sglang.launch_server", environ={"SGLANG_HS_DUMP_DIR": str(place)}) as pid:
        answer = verify()
    said = [
        "the last server ended without a capture",
        "the hook fired and the captures are sound",
    ][captures]
    assert answer.exit_code == 1 - captures
    assert answer.said["summary"] == f"{said}; server {pid} runs and captures into {place}"


def test_keys_on_a_command_line_or_in_an_environment_are_never_shown(
    verify: Verify, dump: Path
) -> None:
    environ = {"SGLANG_HS_DUMP_DIR": str(dump), "HF_TOKEN": "s3cr3t-1"}
    with running("sglang.launch_server", "--api-key", "s3cr3t-2", environ=environ):
        answer = verify()
        shown = str(answer.said) + repr(find_servers(["sglang.launch_server"]))
    assert "s3cr3t" not in shown


STARTS_VERIFY = (
    "import subprocess, sys; "
    "sys.exit(subprocess.run([sys.executable, '-m', 'hs_capture.verify', '--dump-dir', sys.argv[-1]"
    "], check=False).returncode)"
)
"""With the command line of a server, runs verify."""


def _first_of_a_container(command: Sequence[str]) -> str:
    """Run `command` as the first process of a PID namespace; return what verify says there."""
    unshare = ["unshare", "-mpf" if os.geteuid() == 0 else "-rmpf", "--mount-proc"]
    done = subprocess.run(
        [*unshare, *command], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2, done.stderr
    return done.stdout


def test_a_server_that_is_process_1_of_a_container_is_warned_of(dump: Path) -> None:
    server = [sys.executable, "-c", STARTS_VERIFY, "sglang.launch_server", str(dump)]
    said = _first_of_a_container(server)
    assert "SGLang is process 1 of this container: when the server stops, the writer" in said
    assert "-> start the server through a shell that stays for the writer" in said


def test_an_init_that_ends_with_the_server_is_warned_of(dump: Path, tmp_path: Path) -> None:
    """As `docker run --init` starts one. A shell that stays is fine."""
    init = tmp_path / "tini"
    init.symlink_to(Path(sys.executable).resolve())
    server = [sys.executable, "-c", "import time; time.sleep(300)", "sglang.launch_server"]
    verify = [sys.executable, "-m", "hs_capture.verify", "--dump-dir", str(dump)]
    # In a file, for a command line with the server's in it would be taken for the server.
    starts = tmp_path / "start.py"
    starts.write_text(
        f"import subprocess, sys; server = subprocess.Popen({server!r}); "
        f"code = subprocess.run({verify!r}).returncode; server.kill(); server.wait(); "
        "sys.exit(code)"
    )
    leaves = _first_of_a_container([str(init), str(starts)])
    assert "process 1 of this container is tini, which ends when SGLang has" in leaves
    stays = _first_of_a_container([sys.executable, str(starts)])
    assert "process 1" not in stays


def test_start_times_are_right_and_the_dead_have_none() -> None:
    with running() as pid:
        mine, its = started_at(os.getpid()), started_at(pid)
        assert mine is not None
        assert its is not None
        assert mine <= its
    assert started_at(pid) is None


@pytest.mark.parametrize(
    ("arguments", "without"),
    [
        (["-S", "-m", "sglang.launch_server"], True),
        (["-IS", "x.py"], True),
        (["-X", "dev", "-S", "x.py"], True),
        (["-Xdev", "-S", "x.py"], True),
        (["-W", "-S", "x.py"], False),
        (["-XS", "x.py"], False),
        (["-m", "sglang.launch_server", "-S"], False),
        (["-Bm", "S"], False),
        (["-c", "-S"], False),
        (["x.py", "-S"], False),
        ([], False),
    ],
)
def test_the_option_that_skips_start_up_files_is_recognised(
    arguments: list[str], without: bool
) -> None:
    process = Process(2, 1, 0.0, ("python", *arguments), None)
    assert process.without_site is without
