"""`verify --model`: from what was given on the command line to a proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hs_capture.errors import ConfigError, FormatError
from hs_capture.verify.checkpoint import open_checkpoint
from hs_capture.verify.evidence import Asked, Witness, saved_in_file, saved_in_store
from hs_capture.verify.progress import Progress
from hs_capture.verify.proof import prove

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hs_capture.verify.diagnosis import Prove
    from hs_capture.verify.report import Proof


def by_head(model: Path, server: str | None, responses: Path | None, sample: int | None) -> Prove:
    """What proves captures with the head of the checkpoint in the folder `model`.

    The engine's word comes from the server at an address, else from a file of its answers, else
    from the store itself. Raises `ConfigError`, and so does what it returns.
    """
    checkpoint = open_checkpoint(model)
    if server is not None:
        witness: Witness | None = Asked(server, checkpoint.placeholders)
    else:
        witness = None if responses is None else saved_in_file(responses)

    def proof(dump_dir: Path, runs: Sequence[Path]) -> Proof:
        try:
            known = saved_in_store(dump_dir) if witness is None else witness
        except FormatError as error:
            raise ConfigError(str(error)) from error
        progress = Progress("compared")
        try:
            return prove(runs, checkpoint, known, sample, progress)
        finally:
            progress.end()

    return proof
