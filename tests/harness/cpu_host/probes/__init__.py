"""What the tests look at, or break, inside a server; each is off until its variable is set."""

from __future__ import annotations

import os
from pathlib import Path

TAP = "HS_TEST_TAP"
FAULT = "HS_TEST_FAULT"
CONSTANT = "HS_TEST_CONSTANT"
DRAFT = "HS_TEST_DRAFT"
IMAGES = "HS_TEST_IMAGES"


def install() -> None:
    """Switch on the probes that the environment names. A second call changes nothing."""
    if fault := os.environ.get(FAULT):
        from probes import fault as planted

        planted.plant(fault)
    if constant := os.environ.get(CONSTANT):
        from probes import constant as changed

        changed.change(constant)
    if directory := os.environ.get(TAP):
        from probes import tap

        tap.install(Path(directory))
    if directory := os.environ.get(DRAFT):
        from probes import draft

        draft.install(Path(directory))
    if directory := os.environ.get(IMAGES):
        from probes import images

        images.install(Path(directory))
