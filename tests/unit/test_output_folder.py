"""An output that is a file is refused in the command's own word; a folder or new name is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from hs_capture.errors import ConfigError
from hs_capture.output_folder import refuse_file


@pytest.mark.parametrize("called", ["directory", "folder"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_is_refused_and_stays(
    tmp_path: Path, called: Literal["directory", "folder"], linked: bool
) -> None:
    output = file = tmp_path / "file"
    file.write_text("mine")
    if linked:
        output = tmp_path / "link"
        output.symlink_to(file)
    with pytest.raises(ConfigError) as refused:
        refuse_file(output, called)
    assert str(refused.value) == (
        f"--output {output} is a file: give a {called}, or a new name for one"
    )
    assert file.read_text() == "mine"


def test_a_folder_is_taken_also_through_a_link(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    for output in (folder, link):
        refuse_file(output, "folder")


def test_a_new_name_is_taken_and_nothing_is_made(tmp_path: Path) -> None:
    refuse_file(tmp_path / "new" / "inner", "folder")
    assert list(tmp_path.iterdir()) == []
