"""The verdict and its exit code: fired, attached, not attached, damaged, and why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capture_files import write_capture
from hs_capture.samples import Sample
from unit.export.stores import streams, write_samples

Verify = Callable[..., Any]
NewRun = Callable[..., Path]


def newest_capture(run: Path) -> Path:
    """The capture file with the highest sequence number."""
    return max(run.glob("0*/*.hsc"))


def break_file(path: Path) -> None:
    """Flip a bit in the first block."""
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)


def test_captures_of_a_serving_server_fired_and_are_sound(verify: Verify, new_run: NewRun) -> None:
    new_run(captures=3)
    answer = verify()
    assert answer.exit_code == 0
    assert (answer.said["verdict"], answer.said["exit_code"]) == ("fired", 0)
    assert answer.check("fired")["text"] == (
        "3 captures, 15 tokens, 960 bytes stored in 720 bytes, last 0 s ago"
    )
    assert answer.check("sound")["text"].startswith(
        "the newest 3 captures of run run-a: checksums, values, counts and layers are right"
    )
    assert answer.check("attached") == {
        "name": "attached",
        "state": "ok",
        "text": f"run run-a, serving in process {os.getpid()}: DeepseekV2ForCausalLM of "
        "SGLang 0.5.23, door pth, layers 1,3,4, final pre_norm, 2 functions wrapped",
        "hint": answer.check("attached")["hint"],
    }
    assert not [check for check in answer.said["checks"] if check["state"] == "fail"]
    (run,) = answer.said["runs"]
    assert run["counters"]["captures"] == 3
    assert (run["examined"], run["damaged"], run["live"]) == (3, [], True)


def test_the_variable_names_the_directory_when_the_argument_does_not(
    verify: Verify, new_run: NewRun, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(captures=1)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(dump))
    answer = verify(directory=None)
    assert answer.exit_code == 0
    assert answer.said["dump_dir"] == str(dump)
    assert (answer.check("settings")["state"], answer.check("settings")["text"]) == (
        "ok",
        "of this shell: layers auto, final pre_norm",
    )
    assert answer.checks("variables") == []


def test_variables_of_this_shell_that_do_nothing_are_warned_of(
    verify: Verify, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(captures=1)
    assert verify().checks("variables") == []
    monkeypatch.setenv("SGLANG_HS_DUMPDIR", "/dump")
    monkeypatch.setenv("SGLANG_HS_LAYERS", "1,2")
    monkeypatch.setenv("SGLANG_HS_FINAL", " ")
    answer = verify()
    assert answer.exit_code == 0
    assert answer.check("variables") == {
        "name": "variables",
        "state": "warn",
        "text": "set in this shell: SGLANG_HS_DUMPDIR (did you mean SGLANG_HS_DUMP_DIR?), "
        "SGLANG_HS_LAYERS; without SGLANG_HS_DUMP_DIR nothing is captured",
        "hint": "export SGLANG_HS_DUMP_DIR too, or unset what is not meant",
    }


def test_one_run_directory_can_be_looked_at_alone(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=2)
    answer = verify(directory=run)
    assert answer.exit_code == 0
    assert [found["run_id"] for found in answer.said["runs"]] == ["run-a"]


def test_without_any_directory_it_is_not_attached_and_says_so(verify: Verify) -> None:
    answer = verify(directory=None)
    assert answer.exit_code == 2
    assert answer.said["dump_dir"] is None
    assert answer.check("directory")["text"] == (
        "no directory to look at: neither --dump-dir nor SGLANG_HS_DUMP_DIR is given"
    )
    assert answer.check("settings")["state"] == "fail"
    assert "is not set in this shell" in answer.check("settings")["text"]


def test_an_empty_directory_means_not_attached(verify: Verify) -> None:
    answer = verify()
    assert answer.exit_code == 2
    assert answer.check("attached")["text"] == (
        "no server has attached: there is no run in the directory"
    )


def test_a_directory_that_does_not_exist_is_not_created(verify: Verify, tmp_path: Path) -> None:
    answer = verify(directory=tmp_path / "none")
    assert answer.exit_code == 2
    check = answer.check("directory")
    assert (check["state"], check["text"]) == ("fail", f"{tmp_path}/none does not exist (yet)")
    assert not (tmp_path / "none").exists()


def test_a_directory_that_a_server_would_refuse_is_named(verify: Verify, dump: Path) -> None:
    dump.chmod(0o777)
    answer = verify()
    assert answer.exit_code == 2
    assert answer.check("directory")["state"] == "fail"
    assert "may be written by everybody" in answer.check("directory")["text"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [("ro,mode=700", "is read-only"), ("size=4K,mode=700", "is full")],
)
def test_a_file_system_that_takes_nothing_is_named(options: str, reason: str) -> None:
    script = f'mount -t tmpfs -o {options} none /mnt; exec "$0" -m hs_capture.verify "$@"'
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script]
    done = subprocess.run(
        [*unshare, sys.executable, "--dump-dir", "/mnt"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert f"cannot be written: its file system {reason}" in done.stdout


def test_a_file_system_down_to_its_reserve_is_named(
    verify: Verify, new_run: NewRun, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(captures=1)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(dump))
    monkeypatch.setenv("SGLANG_HS_RESERVE", "99.999999%")
    answer = verify()
    assert answer.exit_code == 0
    assert answer.check("directory")["state"] == "warn"
    assert "nothing more is stored" in answer.check("directory")["text"]


def test_a_wrong_setting_is_named(
    verify: Verify, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", str(dump))
    monkeypatch.setenv("SGLANG_HS_LAYERS", "1,1")
    answer = verify()
    assert answer.exit_code == 2
    assert answer.check("settings")["text"].startswith("SGLANG_HS_LAYERS='1,1' is not accepted")


def test_the_variable_names_the_directory_also_when_another_one_is_wrong(
    verify: Verify, new_run: NewRun, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(captures=1)
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", f" {dump} ")
    monkeypatch.setenv("SGLANG_HS_LAYERS", "foo")
    answer = verify(directory=None)
    assert (answer.exit_code, answer.said["dump_dir"]) == (0, str(dump))
    assert answer.check("directory")["state"] == "ok"
    assert answer.check("settings")["text"].startswith("SGLANG_HS_LAYERS='foo' is not accepted")


def test_a_directory_that_is_not_accepted_is_not_called_missing(
    verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", "~/dump")
    answer = verify(directory=None)
    assert answer.exit_code == 2
    assert answer.check("directory")["text"] == (
        "no directory to look at: --dump-dir is not given, and the value of SGLANG_HS_DUMP_DIR is "
        "not accepted"
    )


def test_the_hint_to_export_the_variable_names_the_directory_that_is_looked_at(
    verify: Verify, new_run: NewRun, dump: Path, tmp_path: Path
) -> None:
    run = new_run(captures=1)
    spaced = tmp_path / "a b"
    for given, named in ((dump, dump), (run, dump), (spaced, f"'{spaced}'")):
        hint = verify(directory=given).check("settings")["hint"]
        assert hint == f"export SGLANG_HS_DUMP_DIR={named} before the server starts"


def test_a_server_without_a_capture_yet_is_attached(verify: Verify, new_run: NewRun) -> None:
    new_run(captures=0)
    answer = verify()
    assert (answer.exit_code, answer.said["verdict"]) == (1, "attached")
    assert answer.said["summary"] == "nothing captured yet"
    assert "send the server a request" in answer.check("fired")["hint"]


def test_a_server_that_serves_counts_more_than_an_older_run(
    verify: Verify, new_run: NewRun
) -> None:
    new_run(captures=2, run_id="old", created=time.time() - 900, state="ended")
    new_run(captures=0, run_id="new")
    answer = verify()
    assert answer.exit_code == 1
    assert [run["run_id"] for run in answer.said["runs"]] == ["old", "new"]


def test_the_newest_run_counts_when_no_server_serves(
    verify: Verify, new_run: NewRun, gone: int
) -> None:
    new_run(captures=0, run_id="old", created=time.time() - 900, state="ended", server_pid=gone)
    new_run(captures=2, run_id="new", state="ended", server_pid=gone)
    answer = verify()
    assert answer.exit_code == 0
    assert answer.said["summary"] == (
        "the hook fired and the captures are sound; no server runs now"
    )
    assert "run new, ended" in answer.check("attached")["text"]


def test_captures_that_were_taken_away_still_fired(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=2)
    for path in run.glob("0*/*.hsc"):
        path.unlink()
    answer = verify()
    assert answer.exit_code == 0
    assert answer.checks("sound") == []
    assert answer.said["summary"] == (
        "the hook fired (2 captures), and none is here to be read: moved away or deleted"
    )


def test_an_older_run_that_is_sound_does_not_speak_for_captures_that_were_taken_away(
    verify: Verify, new_run: NewRun
) -> None:
    new_run(captures=1, run_id="old", created=time.time() - 900, state="ended")
    run = new_run(captures=1, run_id="new", state="ended")
    next(run.glob("0*/*.hsc")).unlink()
    answer = verify()
    assert answer.exit_code == 0
    assert answer.said["summary"] == (
        "the hook fired (1 capture), and none is here to be read: moved away or deleted; "
        "no server runs now"
    )


def test_a_run_without_a_status_file_is_judged_by_its_captures(
    verify: Verify, new_run: NewRun
) -> None:
    run = new_run(captures=2)
    (run / "status-tp0.json").unlink()
    (run / "open").mkdir()
    answer = verify()
    assert answer.exit_code == 0
    assert "has not reported yet" in answer.check("writer")["text"]


def test_a_damaged_capture_is_named_with_the_place(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=3)
    path = newest_capture(run)
    break_file(path)
    answer = verify()
    assert (answer.exit_code, answer.said["verdict"]) == (3, "damaged")
    expected = f"{path}: stream 'input_ids' rows [0, 3) at byte 8: checksum does not match"
    assert answer.check("sound")["text"] == expected
    assert answer.check("sound")["hint"] == (
        "do not train on it: delete it, then run the same `hs-capture extract` again, which "
        "fetches what is missing, or send its request again with an `extra_key` of its own, so "
        "that SGLang computes all rows"
    )
    assert answer.said["runs"][0]["damaged"] == [{"file": str(path), "error": expected}]
    assert answer.said["summary"] == "1 capture cannot be trusted"


def test_values_that_are_not_finite_are_damage(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=1)
    rows = streams(3)
    rows["layer.1"][1, 1] = float("nan")
    write_capture(run, 1, "bad", rows)
    answer = verify()
    assert answer.exit_code == 3
    assert answer.check("sound")["text"].endswith("stream 'layer.1': 1 values are not finite")


def test_of_many_damaged_captures_ten_are_named_and_json_has_all(
    verify: Verify, new_run: NewRun
) -> None:
    run = new_run(captures=13)
    for path in run.glob("0*/*.hsc"):
        break_file(path)
    answer = verify()
    assert answer.exit_code == 3
    assert len(answer.checks("sound")) == 11
    assert answer.checks("sound")[-1]["text"] == "3 more captures of run run-a damaged"
    assert len(answer.said["runs"][0]["damaged"]) == 13


def test_the_newest_32_are_read_or_as_many_as_asked_for(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=40)
    break_file(min(run.glob("0*/*.hsc")))
    answer = verify()
    assert (answer.exit_code, answer.said["runs"][0]["examined"]) == (0, 32)
    answer = verify("--sample", "3")
    assert (answer.exit_code, answer.said["runs"][0]["examined"]) == (0, 3)
    for arguments in (["--sample", "40"], ["--all"]):
        answer = verify(*arguments)
        assert (answer.exit_code, answer.said["runs"][0]["examined"]) == (3, 40)


def test_a_capture_under_the_name_of_another_is_damage(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=3)
    first, second, _ = sorted(run.glob("0*/*.hsc"))
    second.write_bytes(first.read_bytes())
    answer = verify("--all")
    assert (answer.exit_code, answer.said["verdict"]) == (3, "damaged")
    assert answer.check("sound")["text"] == f"{second}: rid is 'rid-0', but the index says 'rid-1'"


def test_a_capture_of_another_run_is_damage(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=1)
    other = new_run(captures=1, run_id="other")
    path = newest_capture(run)
    path.write_bytes(newest_capture(other).read_bytes())
    assert verify(directory=run).check("sound")["text"] == (
        f"{path}: run_id is 'other', but run.json says 'run-a'"
    )


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (streams(3, layers=(1, 2)), r"layer_ids is (1, 2), but run.json says (1, 3, 4)"),
        (streams(3, final=()), r"final is (), but run.json says ('pre_norm',)"),
    ],
)
def test_other_states_than_the_run_has_are_damage(
    verify: Verify, new_run: NewRun, content: Any, what: str
) -> None:
    run = new_run(captures=0, counters={"captures": 1})
    write_capture(run, 0, "x", content)
    assert verify().check("sound")["text"] == f"{newest_capture(run)}: {what}"


def test_a_capture_that_no_index_names_is_judged_by_itself(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=1)
    write_capture(run, 1, "x", streams(3), indexed=False)
    assert (verify().exit_code, verify().said["runs"][0]["examined"]) == (0, 2)


def make_store(run: Path) -> None:
    """Have a run look as extract and drain leave it."""
    (run / "status-tp0.json").unlink()


def test_captures_that_a_store_has_lost_are_warned_of(verify: Verify, new_run: NewRun) -> None:
    run = new_run(captures=3)
    next(run.glob("0*/*.hsc")).unlink()
    # A server's own directory: whoever reads it takes what it has read.
    assert verify().checks("gone") == []
    make_store(run)
    assert verify().check("gone") == {
        "name": "gone",
        "state": "warn",
        "text": "1 capture gone that the index names, run run-a",
        "hint": "readers pass over them: were they moved, or deleted?",
    }
    assert (verify().exit_code, verify().said["verdict"]) == (0, "fired")


def test_samples_that_were_fetched_again_are_not_lost(
    verify: Verify, new_run: NewRun, dump: Path
) -> None:
    """Of three samples two have lost their captures; one was brought anew by another server."""
    run, other = new_run(captures=3), new_run(captures=0, run_id="run-b")
    write_capture(other, 0, "again-0", streams(5, 7), run_id="run-b")
    for folder in (run, other):
        make_store(folder)
    lines = [Sample(n, "", f"rid-{n}", ()) for n in range(3)]
    write_samples(dump, *lines, Sample(0, "", "again-0", ()))
    for sequence in (0, 1):
        (run / "000000" / f"00000000{sequence}-x.hsc").unlink()
    assert verify().check("gone") == {
        "name": "gone",
        "state": "warn",
        "text": "1 capture gone that the index names, run run-a",
        "hint": "data sets and exports leave them out: run the same `hs-capture extract` again, "
        "which fetches what is missing",
    }


@pytest.mark.parametrize("name", ["run.json", "status-tp0.json", "index-tp0.jsonl"])
def test_a_broken_file_of_a_run_is_damage(verify: Verify, new_run: NewRun, name: str) -> None:
    run = new_run(captures=1)
    (run / name).write_bytes(b"{nonsense\n" + (run / name).read_bytes())
    answer = verify()
    assert answer.exit_code == 3
    assert answer.check("run files")["text"].startswith(f"{run / name}: ")
