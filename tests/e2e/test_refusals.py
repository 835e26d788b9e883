"""A wrong configuration stops the server before it serves, with one line that says why."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.launching import Mounts, Zygote
from harness.refusals import Refused, refused_start
from harness.server import ServerConfig

NOBODY = 65534


@pytest.fixture
def refuse(zygote: Zygote, model: Path, new_log: Callable[[], Path]) -> Callable[..., Refused]:
    """Start a server that must not serve; return how it ended and its only line of ours."""

    def refused(
        environment: dict[str, str], mounts: Mounts = (), arguments: tuple[str, ...] = ()
    ) -> Refused:
        config = ServerConfig(
            model,
            {"SGLANG_HS_BUFFER": "16M", **environment},
            mounts=mounts,
            arguments=arguments,
        )
        return refused_start(zygote, config, new_log())

    return refused


def _file(path: Path) -> None:
    path.write_text("not a directory")


def _link(path: Path) -> None:
    target = path.with_name("target")
    target.mkdir(mode=0o700)
    path.symlink_to(target)


def _world_writable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_file, "is not a directory"),
        (_link, "is a symbolic link"),
        (_world_writable, "may be written by everybody"),
        (_foreign, f"belongs to user {NOBODY}"),
    ],
)
def test_unfit_directory_is_refused(
    refuse: Callable[..., Refused], tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    """What is no private directory of ours is not written to."""
    path = tmp_path / "dump"
    make(path)
    refused = refuse({"SGLANG_HS_DUMP_DIR": str(path)})
    assert refused.exit_code != 0
    assert f"SGLANG_HS_DUMP_DIR={str(path)!r}" in refused.line
    assert said in refused.line
    assert not path.is_dir() or list(path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "fill", "said"),
    [("ro,mode=0700", False, "read-only"), ("size=64k,mode=0700", True, "full")],
    ids=["read-only", "full"],
)
def test_unwritable_file_system_is_refused(
    refuse: Callable[..., Refused], tmp_path: Path, options: str, fill: bool, said: str
) -> None:
    """A real file system that takes no file: mounted where only this server sees it."""
    path = tmp_path / "dump"
    path.mkdir(mode=0o700)
    mounts = [["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]]
    if fill:
        mounts.append(["sh", "-c", f"head -c 1M /dev/zero >'{path}/fill' || true"])
    refused = refuse({"SGLANG_HS_DUMP_DIR": str(path)}, mounts)
    assert refused.exit_code != 0
    assert f"SGLANG_HS_DUMP_DIR={str(path)!r}" in refused.line
    assert said in refused.line


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SGLANG_HS_LAYERS", "1,8", "layer 8 does not exist"),
        ("SGLANG_HS_LAYERS", "1,7", "layer 7 is the last of this model's 8 layers"),
        ("SGLANG_HS_LAYERS", "1,3,1", "1 is there twice"),
        ("SGLANG_HS_LAYERS", "-2", "'-2' is no layer id"),
        ("SGLANG_HS_LAYERS", "one", "'one' is no layer id"),
        ("SGLANG_HS_LAYERS", "eagle3:2,9", "layer 8 does not exist"),
        ("SGLANG_HS_FINAL", "prenorm", "pre_norm, post_norm, both or none"),
        ("SGLANG_HS_LAYER", "1", "did you mean SGLANG_HS_LAYERS?"),
        ("SGLANG_HS_BLOCK_TIMEOUT", "200", "at most a third of --watchdog-timeout, which is 300 "),
    ],
)
def test_wrong_setting_is_refused(
    refuse: Callable[..., Refused], tmp_path: Path, name: str, value: str, said: str
) -> None:
    """The line names the variable and says what is wrong; it is left for verify, too."""
    path = tmp_path / "dump"
    path.mkdir(mode=0o700)
    refused = refuse({"SGLANG_HS_DUMP_DIR": str(path), name: value})
    assert refused.exit_code != 0
    assert name in refused.line
    assert said in refused.line
    message = json.loads((path / "last-refusal.json").read_text())["message"]
    assert refused.line == f"hs-capture: the server does not start: {message}"
    assert not list(path.rglob("*.hsc"))
