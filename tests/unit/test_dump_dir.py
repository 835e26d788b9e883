"""The dump directory: what is created, what is refused, and how the refusal reads.

Mounts are real (tmpfs in a private mount namespace), users are real (a second user id).
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hs_capture.dump_dir import DumpDir, judge, prepare
from hs_capture.errors import ConfigError

STRANGER = 54321
"""A user id that is not ours and owns nothing."""

PRELUDE = """
import os, sys
from pathlib import Path
from hs_capture.dump_dir import prepare
from hs_capture.errors import ConfigError

def attempt(path):
    try:
        found = prepare(Path(path))
    except ConfigError as error:
        print("refused:", error)
    else:
        print("accepted:", oct(found.file_mode), os.listdir(found.path))
"""


def in_namespace(shell: str, code: str) -> list[str]:
    """Run `shell` (mounts below /mnt) and then Python `code` in a mount namespace of its own.

    The namespace goes with the process, so no mount can be left behind. Without root a user
    namespace gives the right to mount.
    """
    script = f'set -e; mount -t tmpfs none /mnt; {shell}; exec "$0" -c "$1"'
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    done = subprocess.run(
        [*unshare, "sh", "-c", script, sys.executable, PRELUDE + code],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def refusal(path: Path) -> str:
    """The one line with which `path` is refused, without the name of the path."""
    with pytest.raises(ConfigError) as caught:
        prepare(path)
    message = str(caught.value)
    start = f"SGLANG_HS_DUMP_DIR={str(path)!r} "
    assert message.startswith(start)
    assert "\n" not in message
    return message.removeprefix(start)


def mode(path: Path) -> int:
    """The permission bits of `path`."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_missing_directory_is_created_with_its_parents_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    before = os.umask(0)
    try:
        assert prepare(path) == DumpDir(path, 0o600)
    finally:
        os.umask(before)
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert list(path.iterdir()) == []


def test_many_processes_may_create_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x" / "y"
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(prepare, [path] * 64)) == [DumpDir(path, 0o600)] * 64
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("directory", "files", "folders"),
    [(0o700, 0o600, 0o700), (0o750, 0o640, 0o750), (0o755, 0o640, 0o750), (0o2770, 0o640, 0o750)],
)
def test_the_group_read_bit_of_a_directory_is_honoured(
    tmp_path: Path, directory: int, files: int, folders: int
) -> None:
    path = tmp_path / "d"
    path.mkdir()
    path.chmod(directory)
    found = prepare(path)
    assert (found.file_mode, found.directory_mode) == (files, folders)
    assert mode(path) == directory


def test_what_lies_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    prepare(tmp_path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("kept", b"kept")]


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    assert refusal(path) == "is not a directory: remove it or choose another path"
    assert path.read_bytes() == b"x"


def test_a_file_among_the_parents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    expected = "cannot be created: a part of the path is not a directory: choose another path"
    assert refusal(tmp_path / "file" / "d") == expected


@pytest.mark.parametrize("target", ["real", "nothing"])
def test_a_symbolic_link_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    assert refusal(link) == "is a symbolic link: give the directory it should be"
    assert list((tmp_path / "real").iterdir()) == []


def test_a_symbolic_link_higher_up_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = tmp_path / "link" / "d"
    assert prepare(path) == DumpDir(path, 0o600)


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o702])
def test_a_world_writable_directory_is_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "d"
    path.mkdir()
    path.chmod(bits)
    assert refusal(path) == (
        f"may be written by everybody (mode {bits:04o}): "
        "take that right away with chmod o-w, or choose another directory"
    )


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    # Root makes one; anybody else finds one: the root directory is root's.
    path, owner = Path("/"), 0
    if os.geteuid() == 0:
        path, owner = tmp_path / "d", STRANGER
        path.mkdir(mode=0o700)
        os.chown(path, owner, -1)
    assert refusal(path) == (
        f"belongs to user {owner}, and this process runs as user {os.geteuid()}: "
        "choose a directory of your own"
    )


def test_a_read_only_file_system_is_refused() -> None:
    lines = in_namespace(
        "mkdir /mnt/d; mount -t tmpfs -o ro,mode=700 none /mnt/d",
        "attempt('/mnt/d'); attempt('/mnt/d/new')",
    )
    why = "its file system is read-only: remount it or choose another directory"
    assert lines == [
        f"refused: SGLANG_HS_DUMP_DIR='/mnt/d' cannot be written: {why}",
        f"refused: SGLANG_HS_DUMP_DIR='/mnt/d/new' cannot be created: {why}",
    ]


def test_a_full_file_system_is_refused_and_nothing_is_left_on_it() -> None:
    lines = in_namespace(
        "mkdir /mnt/d; mount -t tmpfs -o size=1M,mode=700 none /mnt/d; "
        "dd if=/dev/zero of=/mnt/d/filler bs=1024 count=1000 status=none",
        "attempt('/mnt/d'); print(os.listdir('/mnt/d')); "
        "os.remove('/mnt/d/filler'); attempt('/mnt/d')",
    )
    why = "its file system is full: free some space or choose another directory"
    assert lines == [
        f"refused: SGLANG_HS_DUMP_DIR='/mnt/d' cannot be written: {why}",
        "['filler']",
        "accepted: 0o600 []",
    ]


def test_a_file_system_without_inodes_left_is_refused() -> None:
    lines = in_namespace(
        "mkdir /mnt/d; mount -t tmpfs -o nr_inodes=2,mode=700 none /mnt/d; touch /mnt/d/last",
        "attempt('/mnt/d'); attempt('/mnt/d/new')",
    )
    assert [line.split(": ", 2)[2] for line in lines] == [
        "its file system is full: free some space or choose another directory"
    ] * 2


def test_a_user_without_the_right_to_write_is_told_so(tmp_path: Path) -> None:
    why = "has no right to: choose a directory of your own"
    if os.geteuid() != 0:
        path = tmp_path / "d"
        path.mkdir(mode=0o500)
        assert refusal(path) == f"cannot be written: user {os.geteuid()} {why}"
        return
    # Nothing is denied to root, so root's part is played by another user.
    lines = in_namespace(
        f"chmod 755 /mnt; mkdir -m 500 /mnt/d; chown {STRANGER} /mnt/d; mkdir -m 700 /mnt/roots",
        f"os.setresuid({STRANGER}, {STRANGER}, {STRANGER}); "
        "attempt('/mnt/d'); attempt('/mnt/roots/d'); attempt('/mnt/new')",
    )
    assert lines == [
        f"refused: SGLANG_HS_DUMP_DIR='/mnt/d' cannot be written: user {STRANGER} {why}",
        f"refused: SGLANG_HS_DUMP_DIR='/mnt/roots/d' cannot be created: user {STRANGER} {why}",
        f"refused: SGLANG_HS_DUMP_DIR='/mnt/new' cannot be created: user {STRANGER} {why}",
    ]


def test_judge_is_like_prepare_but_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d"
    with pytest.raises(ConfigError, match="there is no such directory"):
        judge(path)
    assert not path.exists()
    path.mkdir(mode=0o750)
    assert judge(path) == DumpDir(path, 0o640)
    path.chmod(0o777)
    with pytest.raises(ConfigError, match="may be written by everybody"):
        judge(path)
