"""What the user asked for: the SGLANG_HS_* environment variables, checked once and made plain data.

This module is the only reader of the environment in the package. What can be judged without a
model is judged here, so that a mistake stops the server at start, with the variable's name.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hs_capture.errors import ConfigError

DUMP_DIR = "SGLANG_HS_DUMP_DIR"
LAYERS = "SGLANG_HS_LAYERS"
FINAL = "SGLANG_HS_FINAL"
RIDS = "SGLANG_HS_RIDS"
PHASES = "SGLANG_HS_PHASES"
ON_FULL = "SGLANG_HS_ON_FULL"
BLOCK_TIMEOUT = "SGLANG_HS_BLOCK_TIMEOUT"
RESERVE = "SGLANG_HS_RESERVE"
BUFFER = "SGLANG_HS_BUFFER"
WORKERS = "SGLANG_HS_WORKERS"

VARIABLES = (
    *(DUMP_DIR, LAYERS, FINAL, RIDS, PHASES, ON_FULL, BLOCK_TIMEOUT, RESERVE, BUFFER, WORKERS),
)
PREFIX = "SGLANG_HS_"

VERIFY_RIDS = "hs-capture-verify-"
"""Requests whose rids begin like this come from verify, which leaves no captures behind."""

MIN_BUFFER = 64 * 1024
MAX_WORKERS = 256

_FINALS: dict[str, tuple[str, ...]] = {
    "pre_norm": ("pre_norm",),
    "post_norm": ("post_norm",),
    "both": ("pre_norm", "post_norm"),
    "none": (),
}
_PHASES: dict[str, tuple[str, ...]] = {
    "prefill": ("prefill",),
    "prefill,decode": ("prefill", "decode"),
}
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_ID = re.compile(r"-?[0-9]{1,9}")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([KMGkmg]?)")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
_SIZE_WORDS = "bytes, or a number with K, M or G (powers of 1024)"


@dataclass(frozen=True)
class LayerChoice:
    """Which layers to capture, as asked for and not yet settled against a model.

    kind "auto": EAGLE-3's three layers, ids is empty. "ids": 0-based layer ids, -1 is the
    embedding. "eagle3": ids as written in a draft model's config. The given order is kept.
    """

    kind: Literal["auto", "ids", "eagle3"]
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reserve:
    """Free space of the dump file system never to be used: bytes, or a share of its size.

    One of the two is given, the other None; `fraction` is from 0 to below 1.
    """

    bytes: int | None = None
    fraction: float | None = None

    def bytes_of(self, total: int) -> int:
        """The reserve in bytes on a file system of `total` bytes."""
        return int(total * (self.fraction or 0)) if self.bytes is None else self.bytes


@dataclass(frozen=True)
class Settings:
    """The checked settings of one server. `buffer` is in bytes, `block_timeout` in seconds.

    `rids` is a shell pattern (fnmatch) or None for all requests. `phases` is ("prefill",) or, for
    the rows of generated tokens too, ("prefill", "decode"). `dump_dir` is absolute; it is not
    looked at here (see dump_dir.prepare).
    """

    dump_dir: Path
    layers: LayerChoice = LayerChoice("auto")
    final: tuple[str, ...] = ("pre_norm",)
    rids: str | None = None
    phases: tuple[str, ...] = ("prefill",)
    on_full: Literal["block", "drop"] = "block"
    block_timeout: float = 5.0
    reserve: Reserve = Reserve(fraction=0.05)
    buffer: int = 1024**3
    workers: int = 4

    @property
    def follows_decode(self) -> bool:
        """Whether the rows of generated tokens are captured too."""
        return "decode" in self.phases

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings | None:
        """Read the settings from `environ` (default: os.environ); None when capture is off.

        Off means that SGLANG_HS_DUMP_DIR is unset, empty or only white space; then nothing else
        is looked at. An empty value of another variable means its default. Surrounding white space
        is dropped. Raises ConfigError naming the variable, its value and what is accepted.
        """
        found = os.environ if environ is None else environ
        values = {name: text.strip() for name, text in found.items() if name.startswith(PREFIX)}
        directory = values.get(DUMP_DIR, "")
        if not directory:
            return None
        _refuse_unknown(values)
        on_full: Literal["block", "drop"] = "block"
        match values.get(ON_FULL, ""):
            case "" | "block":
                pass
            case "drop":
                on_full = "drop"
            case other:
                raise _bad(ON_FULL, other, "block or drop")
        return cls(
            dump_dir=_directory(directory),
            layers=_layers(values.get(LAYERS, "") or "auto"),
            final=_final(values.get(FINAL, "") or "pre_norm"),
            rids=values.get(RIDS, "") or None,
            phases=_phases(values.get(PHASES, "") or "prefill"),
            on_full=on_full,
            block_timeout=_timeout(values.get(BLOCK_TIMEOUT, "") or "5"),
            reserve=_reserve(values.get(RESERVE, "") or "5%"),
            buffer=_buffer(values.get(BUFFER, "") or "1G"),
            workers=_workers(values.get(WORKERS, "") or "4"),
        )


def dump_dir_of(environ: Mapping[str, str] | None = None) -> Path | None:
    """The directory that `environ` names, whatever its other variables say; None when it has none.

    Raises ConfigError when the value of SGLANG_HS_DUMP_DIR itself is not accepted.
    """
    text = (os.environ if environ is None else environ).get(DUMP_DIR, "").strip()
    return _directory(text) if text else None


def set_in_vain(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The SGLANG_HS_* variables in `environ` that do nothing, for SGLANG_HS_DUMP_DIR is not set.

    Sorted; a name that there is not comes with a guess what was meant. Values are not told.
    """
    found = os.environ if environ is None else environ
    names = sorted(name for name, text in found.items() if name.startswith(PREFIX) and text.strip())
    if DUMP_DIR in names:
        return ()
    guesses = {name: _closest(name) for name in names if name not in VARIABLES}
    return tuple(
        f"{name} (did you mean {guesses[name]}?)" if guesses.get(name) else name for name in names
    )


def sglang_plugins(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The names that SGLang's own SGLANG_PLUGINS admits, or None when it admits all.

    SGLang skips every plugin that a non-empty list does not name, so verify has to know it.
    """
    text = (os.environ if environ is None else environ).get("SGLANG_PLUGINS", "")
    if not text:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _bad(variable: str, value: str, accepted: str) -> ConfigError:
    return ConfigError(f"{variable}={value!r} is not accepted: give {accepted}")


def _refuse_unknown(values: Mapping[str, str]) -> None:
    # A misspelled variable would otherwise leave its default in place without a word.
    for name in sorted(values):
        if name in VARIABLES:
            continue
        close = _closest(name)
        hint = f"did you mean {close}?" if close else f"known are {', '.join(VARIABLES)}"
        raise ConfigError(f"{name}={values[name]!r} is set, but there is no such variable: {hint}")


def _closest(name: str) -> str | None:
    return next(iter(difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.6)), None)


def _directory(text: str) -> Path:
    if text.startswith("~"):
        # Only a shell expands this, and not inside quotes or a container's ENV line.
        raise _bad(DUMP_DIR, text, "a full path ('~' was not expanded by the shell)")
    # Not resolve(): a symbolic link must stay one, so that it can be refused.
    return Path(os.path.abspath(text))  # noqa: PTH100


def _layers(text: str) -> LayerChoice:
    if text == "auto":
        return LayerChoice("auto")
    kind: Literal["ids", "eagle3"] = "ids"
    listed = text
    if text.startswith("eagle3:"):
        kind, listed = "eagle3", text.removeprefix("eagle3:")
    ids: list[int] = []
    for part in (piece.strip() for piece in listed.split(",")):
        if not _ID.fullmatch(part) or int(part) < -1:
            raise _bad(
                LAYERS,
                text,
                "auto, layer ids such as 1,29,57 (-1 is the embedding), or eagle3:2,30,58; "
                f"{part!r} is no layer id",
            )
        if int(part) in ids:
            raise _bad(LAYERS, text, f"every layer id once; {int(part)} is there twice")
        ids.append(int(part))
    return LayerChoice(kind, tuple(ids))


def _final(text: str) -> tuple[str, ...]:
    if text not in _FINALS:
        raise _bad(FINAL, text, "pre_norm, post_norm, both or none")
    return _FINALS[text]


def _phases(text: str) -> tuple[str, ...]:
    phases = ",".join(part.strip() for part in text.split(","))
    if phases not in _PHASES:
        alone = "; the rows of generated tokens come with those of their prompt alone"
        raise _bad(PHASES, text, f"prefill, or prefill,decode{alone * (phases == 'decode')}")
    return _PHASES[phases]


def _timeout(text: str) -> float:
    if not _SECONDS.fullmatch(text) or not math.isfinite(float(text)):
        raise _bad(BLOCK_TIMEOUT, text, "seconds, 0 or more, such as 10 or 0.5")
    return float(text)


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    if match is None or ("." in match[1] and not match[2]):
        return None
    unit = _UNITS[match[2].upper()]
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def _reserve(text: str) -> Reserve:
    percent = _PERCENT.fullmatch(text)
    if percent is not None and float(percent[1]) < 100:
        return Reserve(fraction=float(percent[1]) / 100)
    size = _size(text)
    if percent is not None or size is None:
        raise _bad(RESERVE, text, f"{_SIZE_WORDS}, or a share below 100% such as 5%")
    return Reserve(bytes=size)


def _buffer(text: str) -> int:
    size = _size(text)
    if size is None or size < MIN_BUFFER:
        raise _bad(BUFFER, text, f"{_SIZE_WORDS}, at least 64K")
    return size


def _workers(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_WORKERS:
        raise _bad(WORKERS, text, f"a whole number from 1 to {MAX_WORKERS}")
    return int(text)


def writer_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the writer process: this one without our own variables.

    The writer is told everything on its standard input and must not be taken for a server.
    """
    found = os.environ if environ is None else environ
    return {name: value for name, value in found.items() if not name.startswith(PREFIX)}
