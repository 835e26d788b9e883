"""The folder that a command's --output names: refused, before anything is done, if it is a file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hs_capture.errors import ConfigError


def refuse_file(output: Path, called: Literal["directory", "folder"]) -> None:
    """Raise `ConfigError` when `output`, which has to be a folder or to be made, is a file.

    `called` is the word that the command has for such a place.
    """
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output} is a file: give a {called}, or a new name for one")
