"""The codec of capture files beside others, on one thread: ratio, and MB/s both ways.

    python benchmarks/codec.py [--rows 4096] [--width 2048] [--rounds 7] [--json]

Every codec packs the same activations (see activations.py) in the same pieces of 512 KiB, and each
round trip is checked, bit for bit, outside of the clock. Rounds of all codecs are interleaved;
figures are medians. blosc2 and zipnn are left out, and named, where they are not installed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
import zstandard
from activations import entropy_bound, residual_stream
from numpy.typing import NDArray
from safetensors.torch import load, save

from hs_capture.format.codec import decode, encode, rows_per_block

Piece = NDArray[np.uint16]


@dataclass(frozen=True)
class Codec:
    """Packs one piece, and gives it back as bytes."""

    name: str
    pack: Callable[[Piece], Any]
    size: Callable[[Any], int]
    unpack: Callable[[Any, Piece], bytes | memoryview]


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

    return Codec("hs-capture", lambda p: encode(p, "bfloat16"), lambda e: e.stored_bytes, unpack)


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
                "blosc2 shuffle + zstd 1",
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
                "zipnn, 1 thread",
                # It changes its input, so it gets a copy, as a user would have to give it.
                lambda p: zipnn.compress(bytearray(p.tobytes())),
                len,
                lambda d, _: zipnn.decompress(d),
            )
        )
    except ImportError:
        missing.append("zipnn")
    return found, missing


def measure(codecs: list[Codec], pieces: list[Piece], rounds: int) -> dict[str, dict[str, float]]:
    """Run every codec `rounds` times over all pieces, alternating."""
    seconds: dict[str, list[tuple[float, float]]] = {codec.name: [] for codec in codecs}
    sizes: dict[str, int] = {}
    for _ in range(rounds + 1):
        for codec in codecs:
            began = time.perf_counter()
            packed = [codec.pack(piece) for piece in pieces]
            middle = time.perf_counter()
            unpacked = [codec.unpack(p, piece) for p, piece in zip(packed, pieces, strict=True)]
            ended = time.perf_counter()
            for piece, data in zip(pieces, unpacked, strict=True):
                if bytes(data) != piece.tobytes():
                    raise RuntimeError(f"{codec.name} does not give back what it was given")
            sizes[codec.name] = sum(map(codec.size, packed))
            seconds[codec.name].append((middle - began, ended - middle))
    raw = sum(piece.nbytes for piece in pieces)
    return {
        name: {
            "ratio": raw / sizes[name],
            "pack_MB_s": raw / 1e6 / statistics.median(t for t, _ in times[1:]),
            "unpack_MB_s": raw / 1e6 / statistics.median(t for _, t in times[1:]),
        }
        for name, times in seconds.items()
    }


def versions() -> dict[str, Any]:
    """The machine and what ran on it."""
    names = ("numpy", "zstandard", "torch", "safetensors", "blosc2", "zipnn")
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    found = {name: installed[name] for name in names if name in installed}
    return {"cores": os.cpu_count(), "python": platform.python_version(), **found}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bits = residual_stream(options.rows, options.width)
    step = rows_per_block(2 * options.width)
    pieces = [np.ascontiguousarray(bits[i : i + step]) for i in range(0, options.rows, step)]
    found, missing = optional()
    codecs = [ours(), *found, *zstd_codecs(), *uncompressed()]
    results = measure(codecs, pieces, options.rounds)
    report = {
        "machine": versions(),
        "parameters": {**vars(options), "piece_bytes": pieces[0].nbytes},
        "entropy_bound": entropy_bound(bits),
        "codecs": results,
        "not_installed": missing,
    }
    if options.json:
        print(json.dumps(report))
        return 0
    print(json.dumps(report["machine"]), json.dumps(report["parameters"]), sep="\n")
    print(f"{'codec':26} {'ratio':>7} {'pack MB/s':>10} {'unpack MB/s':>12}")
    print(f"{'entropy of the two bytes':26} {report['entropy_bound']:7.3f}")
    for name, row in results.items():
        figures = f"{row['ratio']:7.3f} {row['pack_MB_s']:10,.0f} {row['unpack_MB_s']:12,.0f}"
        print(f"{name:26} {figures}")
    if missing:
        print("not installed:", ", ".join(missing))
    return 0


if __name__ == "__main__":
    sys.exit(main())
