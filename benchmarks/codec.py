"""The codec of capture files beside others, on one thread: ratio, and MB/s both ways.

    python benchmarks/codec.py [--rows 4096] [--width 2048] [--rounds 15] [--json]

Every codec packs the same activations (see activations.py) in the same pieces of 512 KiB, and each
round trip is checked, bit for bit, outside of the clock. Rounds of all codecs are interleaved, one
piece after the other, so that a slow moment of the machine meets all alike; figures are medians
with the least and the most, and ratios of speeds are medians of ratios within a round. Seconds are
those of the processor: all codecs work on one thread, and other work on the machine then counts as
little as it can. blosc2 and zipnn are left out, and named, where they are not installed.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
import zstandard
from activations import entropy_bound, residual_stream
from figures import Spread, Target, machine
from numpy.typing import NDArray
from safetensors.torch import load, save

from hs_capture.format.codec import decode, encode, rows_per_block

Piece = NDArray[np.uint16]
OURS, BLOSC2, ZIPNN = "hs-capture", "blosc2 shuffle + zstd 1", "zipnn, 1 thread"
PACKAGES = ("numpy", "zstandard", "torch", "safetensors", "blosc2", "zipnn")


@dataclass(frozen=True)
class Codec:
    """Packs one piece, and gives it back as bytes."""

    name: str
    pack: Callable[[Piece], Any]
    size: Callable[[Any], int]
    unpack: Callable[[Any, Piece], bytes | memoryview]
    prepare: Callable[[Piece], Any] = lambda piece: piece
    """What it is given to pack; not timed."""


def tensor_of(piece: Piece) -> torch.Tensor:
    return torch.from_numpy(piece.view(np.int16)).view(torch.bfloat16)


def torch_saved(piece: Piece) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensor_of(piece), buffer)
    return buffer.getvalue()


def torch_loaded(data: bytes) -> memoryview:
    return torch.load(io.BytesIO(data)).view(torch.int16).numpy().reshape(-1).data


def ours() -> Codec:
    def unpack(packed: Any, piece: Piece) -> memoryview:
        stored = b"".join(packed.planes)
        return decode(stored, packed.lengths, "bfloat16", piece.size).data

    return Codec(OURS, lambda p: encode(p, "bfloat16"), lambda e: e.stored_bytes, unpack)


def zstd_codecs() -> list[Codec]:
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return [
        Codec(
            "zstd -1, raw bytes",
            lambda p: packer.compress(p.data.cast("B")),
            len,
            lambda d, _: unpacker.decompress(d),
        ),
        Codec(
            "torch.save + zstd -1",
            lambda p: packer.compress(torch_saved(p)),
            len,
            lambda d, _: torch_loaded(unpacker.decompress(d)),
        ),
    ]


def uncompressed() -> list[Codec]:
    return [
        Codec(
            "safetensors, raw",
            lambda p: save({"x": tensor_of(p)}),
            len,
            lambda d, _: load(d)["x"].view(torch.int16).numpy().reshape(-1).data,
        ),
        Codec("torch.save", torch_saved, len, lambda d, _: torch_loaded(d)),
    ]


def optional() -> tuple[list[Codec], list[str]]:
    """Codecs that are installed, and the names of those that are not."""
    found, missing = [], []
    try:
        import blosc2

        blosc2.set_nthreads(1)
        options = {"clevel": 1, "codec": blosc2.Codec.ZSTD, "filter": blosc2.Filter.SHUFFLE}
        found.append(
            Codec(
                BLOSC2,
                lambda p: blosc2.compress(p, typesize=2, **options),
                len,
                lambda d, _: blosc2.decompress(d),
            )
        )
    except ImportError:
        missing.append("blosc2")
    try:
        from zipnn import ZipNN

        zipnn = ZipNN(method="HUFFMAN", input_format="byte", bytearray_dtype="bfloat16", threads=1)
        found.append(
            Codec(
                ZIPNN,
                zipnn.compress,
                len,
                lambda d, _: zipnn.decompress(d),
                # It changes its input, so it gets a copy; that is no work of the codec's.
                lambda p: bytearray(p.tobytes()),
            )
        )
    except ImportError:
        missing.append("zipnn")
    return found, missing


@dataclass
class Result:
    """What one codec did with all pieces: bytes in and out, and MB/s of every round."""

    raw: int = 0
    stored: int = 0
    pack: list[float] = field(default_factory=list)
    unpack: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.raw / self.stored

    def to_object(self) -> dict[str, Any]:
        pack, unpack = asdict(Spread.of(self.pack)), asdict(Spread.of(self.unpack))
        return {"ratio": self.ratio, "pack_MB_s": pack, "unpack_MB_s": unpack}


def measure(codecs: list[Codec], pieces: list[Piece], rounds: int) -> dict[str, Result]:
    """Run every codec `rounds` times over all pieces, alternating with each piece."""
    results = {codec.name: Result() for codec in codecs}
    for number in range(rounds + 1):
        seconds = {codec.name: [0.0, 0.0] for codec in codecs}
        sizes = dict.fromkeys(results, 0)
        for piece in pieces:
            for codec in codecs:
                given = codec.prepare(piece)
                began = time.process_time()
                packed = codec.pack(given)
                middle = time.process_time()
                unpacked = codec.unpack(packed, piece)
                ended = time.process_time()
                if bytes(unpacked) != piece.tobytes():
                    raise RuntimeError(f"{codec.name} does not give back what it was given")
                sizes[codec.name] += codec.size(packed)
                seconds[codec.name][0] += middle - began
                seconds[codec.name][1] += ended - middle
        raw = sum(piece.nbytes for piece in pieces)
        # The first round warms up.
        for name, result in results.items() if number else ():
            result.raw, result.stored = raw, sizes[name]
            result.pack.append(raw / 1e6 / seconds[name][0])
            result.unpack.append(raw / 1e6 / seconds[name][1])
    return results


def targets(results: dict[str, Result], bound: float) -> list[Target]:
    """What the codec is held to, as far as the others are installed."""
    own = results[OURS]
    found = [Target("ratio, of the entropy bound's", own.ratio / bound, 0.985)]
    if BLOSC2 in results:
        found.append(Target("ratio, of blosc2's", own.ratio / results[BLOSC2].ratio, 1.0))
    if ZIPNN in results:
        zipnn = results[ZIPNN]
        speed = statistics.median(a / b for a, b in zip(own.pack, zipnn.pack, strict=True))
        found.append(Target("ratio, of zipnn's", own.ratio / zipnn.ratio, 0.995))
        found.append(Target("pack speed, times zipnn's", speed, 1.3))
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bits = residual_stream(options.rows, options.width)
    step = rows_per_block(2 * options.width)
    pieces = [np.ascontiguousarray(bits[i : i + step]) for i in range(0, options.rows, step)]
    found, missing = optional()
    codecs = [ours(), *found, *zstd_codecs(), *uncompressed()]
    results = measure(codecs, pieces, options.rounds)
    bound = entropy_bound(bits)
    judged = targets(results, bound)
    report = {
        "machine": machine(*PACKAGES),
        "parameters": {**vars(options), "piece_bytes": pieces[0].nbytes},
        "entropy_bound": bound,
        "codecs": {name: result.to_object() for name, result in results.items()},
        "targets": [target.to_object() for target in judged],
        "not_installed": missing,
    }
    if options.json:
        print(json.dumps(report))
        return 0
    print(json.dumps(report["machine"]), json.dumps(report["parameters"]), sep="\n")
    print(f"{'codec':26} {'ratio':>7}  {'pack MB/s':30} {'unpack MB/s':30}")
    print(f"{'entropy of the two bytes':26} {bound:7.3f}")
    for name, result in results.items():
        speeds = f"{Spread.of(result.pack)!s:30} {Spread.of(result.unpack)!s:30}"
        print(f"{name:26} {result.ratio:7.3f}  {speeds}")
    print(*judged, sep="\n")
    if missing:
        print("not installed:", ", ".join(missing))
    return 0


if __name__ == "__main__":
    sys.exit(main())
