"""export.json: what the files of an export are, for people, for a later run, and for any reader.

No trainer's format says all of it: which layers, counted how, with which norm, of which model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import hs_capture
from hs_capture.export.formats import Format
from hs_capture.format.record import Record
from hs_capture.format.run import LAYER_CONVENTION

if TYPE_CHECKING:
    from typing_extensions import Self

    from hs_capture.captured_request import Capture, FinalState

SIDECAR_FILE = "export.json"

_COUNTS = {
    False: "id L is the output of decoder layer L, counted from 0",
    True: "id L is the input of decoder layer L, counted from 0",
}


_DEFAULT_MASKS = {
    False: "all ones: no samples.jsonl in the store",
    True: "ones for generated tokens, or for all where there are none: no samples.jsonl",
}


@dataclass(frozen=True)
class Sidecar(Record):
    """What all files of one export have in common.

    `layer_ids` are those of hs-capture, `trainer_layer_ids` the same layers as the trainer counts
    them. `samples` is None until the export is finished.
    """

    format: str
    trainer: str
    layer_ids: tuple[int, ...]
    layer_convention: str
    trainer_layer_ids: tuple[int, ...]
    trainer_layer_convention: str
    final_state: str
    final_state_origin: str
    loss_mask: str
    dtype: str
    hidden_size: int
    model_class: str
    config_digest: str | None
    sglang_version: str
    hs_capture_version: str
    samples: int | None = None

    @classmethod
    def of(
        cls,
        format_: Format,
        first: Capture,
        layers: tuple[int, ...],
        state: FinalState,
        *,
        masks: bool,
    ) -> Self:
        """The sidecar of an export that begins with the capture `first`."""
        about = first.metadata
        follows = about.get("prompt_tokens") is not None
        derived = "derived from pre_norm with the norm in run.json"
        return cls(
            format=format_.name,
            trainer=format_.trainer,
            layer_ids=layers,
            layer_convention=LAYER_CONVENTION,
            trainer_layer_ids=format_.trainer_ids(layers),
            trainer_layer_convention=_COUNTS[format_.inputs],
            final_state=state,
            final_state_origin="as captured" if state in about["final"] else derived,
            loss_mask="of samples.jsonl" if masks else _DEFAULT_MASKS[follows],
            dtype=about["dtype"],
            hidden_size=about["hidden_size"],
            model_class=about["model_class"],
            config_digest=first.run.config_digest if first.run is not None else None,
            sglang_version=about["sglang_version"],
            hs_capture_version=hs_capture.__version__,
        )

    def finished(self, samples: int) -> Self:
        """The sidecar of the finished export."""
        return replace(self, samples=samples)

    def words(self) -> dict[str, str]:
        """The fields that hold for a single file too, as text."""
        left_out = {"samples", "format", "trainer", "hs_capture_version"}
        return {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in self.to_object().items()
            if name not in left_out and value is not None
        }

    def differences(self, other: Sidecar) -> list[str]:
        """What makes files of the two unfit for one folder, in words."""
        free = {"samples", "hs_capture_version", "sglang_version"}
        mine, theirs = self.to_object(), other.to_object()
        return [
            f"{name} is {mine[name]!r} there and {theirs[name]!r} here"
            for name in mine
            if name not in free and mine[name] != theirs[name]
        ]
