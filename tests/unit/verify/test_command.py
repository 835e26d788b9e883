"""The command: its text for people, its exit codes, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hs_capture.cli import main

Verify = Callable[..., Any]
NewRun = Callable[..., Path]


def test_the_text_for_people_is_aligned_with_hints_and_ends_with_the_verdict(
    new_run: NewRun, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_run(captures=2, counters={"rows_dropped": 5})
    assert main(["verify", "--dump-dir", str(dump)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "fired: the hook fired and the captures are sound (exit code 0)"
    assert lines[-2] == ""
    column = lines[0].index("hs-capture ")
    for number, line in enumerate(lines[:-2]):
        assert line[column - 2 : column] == "  "
        assert line[column] != " "
        if line.startswith(" "):
            assert line[:column].strip() == ""
            assert line[column : column + 3] == "-> "
            assert lines[number - 1].startswith(("warn", "fail"))
        else:
            assert line[:6] in ("ok    ", "warn  ", "fail  ")


def test_the_module_and_the_command_are_the_same(new_run: NewRun, dump: Path) -> None:
    new_run(captures=1)
    for command in (["-m", "hs_capture.verify"], ["-m", "hs_capture.cli", "verify"]):
        done = subprocess.run(
            [sys.executable, *command, "--dump-dir", str(dump)],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith("fired: ")


COMMANDS = ["verify", "estimate", "extract", "drain", "export", "check-drafter", "inspect"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["verify", "--nonsense"],
        ["verify", "--sample", "0"],
        ["verify", "--sample", "x"],
        ["verify", "--sample", "3", "--all"],
        ["verify", "--dump-dir", " "],
    ],
)
def test_wrong_usage_is_4_so_that_it_is_no_verdict(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 4
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"hs-capture: give a command: {', '.join(COMMANDS)}"),
        (
            ["nonsense"],
            f"hs-capture: argument {{{','.join(COMMANDS)}}}: invalid choice: 'nonsense'",
        ),
    ],
)
def test_a_missing_or_unknown_command_is_answered_with_the_commands(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    usage, last = capsys.readouterr().err.splitlines()
    assert usage == f"usage: hs-capture [-h] [--version] {{{','.join(COMMANDS)}}} ..."
    assert last.startswith(message)


def test_the_help_lists_every_command_under_one_heading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    heading, *lines = text.split("\n\n")[-2].splitlines()
    assert heading == "commands:"
    assert [line.split()[0] for line in lines] == COMMANDS
    assert "positional" not in text


def test_verify_needs_neither_torch_nor_sglang(new_run: NewRun, dump: Path) -> None:
    new_run(captures=1)
    code = (
        "import sys; from hs_capture.cli import main; main(sys.argv[1:]); "
        "print(sorted({'torch', 'sglang'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", "--dump-dir", str(dump)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1] == "[]"
