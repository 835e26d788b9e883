"""Ctrl-C ends every command in one line with exit code 130, and each help says so."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from hs_capture.cli import main

COMMANDS = ["verify", "estimate", "extract", "drain", "export", "check-drafter", "inspect"]


def interrupt(*_: object) -> NoReturn:
    """Stand for something that takes long enough for Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["check-drafter", "--draft-config", "config.json"],
        ["export", "--format", "safetensors", "--output", "out"],
    ],
)
def test_a_command_that_reads_a_store_ends_in_one_line(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hs_capture.store.open_store", interrupt)
    assert main([*arguments, "--store", str(tmp_path)]) == 130
    said = capsys.readouterr()
    goes_on = "; run it again to go on" if arguments[0] == "export" else ""
    assert (said.out, said.err) == ("", f"\nhs-capture {arguments[0]}: interrupted{goes_on}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_names_the_exit_code(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "130: " in capsys.readouterr().out
