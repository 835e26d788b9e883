"""What a run says about itself: run.json, status-<rank>.json, last-refusal.json."""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hs_capture.errors import FormatError
from hs_capture.format.codec import dtype_of
from hs_capture.format.record import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

FORMAT_VERSION = 1
LAYER_CONVENTION = (
    "layer L is the output of decoder layer L, counted from 0: the residual stream after layer L "
    "without a norm; layer -1 is the output of the embedding"
)


@dataclass(frozen=True)
class NormWeight(Record):
    """The final RMSNorm of the model: what turns pre-norm final states into post-norm ones."""

    weight_base64: str
    dtype: str
    eps: float

    @classmethod
    def of(cls, weight: NDArray[np.generic], dtype: str, eps: float) -> Self:
        """The norm with `weight` [hidden size] in the carrier type of `dtype`."""
        carrier = dtype_of(dtype).carrier
        if weight.dtype != carrier or weight.ndim != 1:
            raise ValueError(
                f"norm weight: expected one dimension of {carrier} for {dtype}, "
                f"found {weight.ndim} of {weight.dtype}"
            )
        return cls(base64.b64encode(weight.tobytes()).decode("ascii"), dtype, float(eps))

    def weight(self) -> NDArray[np.generic]:
        """The weight [hidden size] in the carrier type of `dtype`; `FormatError` if damaged."""
        dtype = dtype_of(self.dtype)
        try:
            data = base64.b64decode(self.weight_base64, validate=True)
        except binascii.Error as error:
            raise FormatError(f"norm weight: not valid base64: {error}") from error
        if len(data) % dtype.itemsize:
            raise FormatError(f"norm weight: {len(data)} bytes are no whole {self.dtype} values")
        return np.frombuffer(data, dtype.carrier)


@dataclass(frozen=True)
class RunInfo(Record):
    """run.json: one capturing rank of one server start. Times are Unix seconds.

    `norm` is the final norm of the weights that the server started with, weights version 0;
    `norms` holds those of later versions, with the version in decimals as the key. `phases` says
    which rows were captured: "prefill" the prompts', "decode" those of generated tokens.
    """

    run_id: str
    rank: str
    created: float
    hs_capture_version: str
    sglang_version: str
    torch_version: str
    server_pid: int
    door: str
    model_class: str
    wrapped: tuple[str, ...]
    architecture: str
    config_digest: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    layer_ids: tuple[int, ...]
    final: tuple[str, ...]
    ranks: dict[str, int]
    norm: NormWeight | None = None
    notes: tuple[str, ...] = ()
    norms: dict[str, NormWeight] = field(default_factory=dict)
    phases: tuple[str, ...] = ("prefill",)
    layer_convention: str = LAYER_CONVENTION
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_object(cls, value: object, place: str) -> Self:
        """As for every record; a newer format and a norm that does not fit are refused."""
        # The version comes first: the fields of a newer format may be anything.
        version = value.get("format_version") if isinstance(value, dict) else FORMAT_VERSION
        if version != FORMAT_VERSION:
            raise FormatError(
                f"{place}: format version {version!r}, but this release of hs-capture reads "
                f"version {FORMAT_VERSION}; read it with a newer release"
            )
        run = super().from_object(value, place)
        for norm in (run.norm, *run.norms.values()):
            if norm is not None:
                run._check_norm(norm, place)
        return run

    def norm_of(self, weights_version: int) -> NormWeight | None:
        """The final norm of this version of the weights, None if the run does not hold it."""
        return self.norms.get(str(weights_version)) if weights_version else self.norm

    def _check_norm(self, norm: NormWeight, place: str) -> None:
        try:
            length = len(norm.weight())
        except FormatError as error:
            raise FormatError(f"{place}: {error}") from error
        if length != self.hidden_size:
            raise FormatError(
                f"{place}: norm weight has {length} values, the hidden size is {self.hidden_size}"
            )
        if not (math.isfinite(norm.eps) and norm.eps >= 0):
            raise FormatError(f"{place}: norm eps is {norm.eps}, expected 0 or more")


@dataclass(frozen=True)
class Status(Record):
    """status-<rank>.json: how the run is doing. `state` is "serving" or "ended".

    Times are Unix seconds. `counters` holds those of `hs_capture.format.counters.COUNTERS`.
    """

    run_id: str
    rank: str
    state: str
    server_pid: int
    writer_pid: int
    started: float
    heartbeat: float
    last_capture: float | None
    counters: dict[str, int]
    last_error: str | None


@dataclass(frozen=True)
class Refusal(Record):
    """last-refusal.json in the dump directory: why a server start was refused."""

    time: float
    pid: int
    sglang_version: str
    message: str
