"""The supported releases of SGLang, each with the host packages that it was made for.

torch is the one of the main environment for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hs_capture.hooks.compat import TESTED_RELEASES


@dataclass(frozen=True)
class Release:
    """One release and its pins.

    Attributes:
        sglang, transformers, tokenizers, huggingface_hub: versions; the last one is None where
            that of the main environment will do.
        imports_kernels: it imports SGLang's CUDA kernels (sgl_kernel) on every machine.
        hands_out_embedding: the output of the embedding can be captured.
        arguments: what it needs on the command line to be captured on a CPU.
    """

    sglang: str
    transformers: str
    tokenizers: str
    huggingface_hub: str | None = None
    imports_kernels: bool = False
    hands_out_embedding: bool = True
    arguments: tuple[str, ...] = ()

    @property
    def requirements(self) -> list[str]:
        """The packages of its overlay, pinned."""
        hub = [f"huggingface_hub=={self.huggingface_hub}"] if self.huggingface_hub else []
        return [
            f"sglang=={self.sglang}",
            f"transformers=={self.transformers}",
            f"tokenizers=={self.tokenizers}",
            *hub,
        ]

    @property
    def layers(self) -> list[int]:
        """The layers to capture of a model of eight: all kinds that it has."""
        return [-1 if self.hands_out_embedding else 0, 1, 3, 5]


def _old(sglang: str, transformers: str) -> Release:
    return Release(
        sglang,
        transformers,
        "0.22.2",
        "1.33.0",
        imports_kernels=True,
        hands_out_embedding=False,
        arguments=("--disable-piecewise-cuda-graph",),
    )


_ALL = (
    _old("0.5.10.post1", "5.3.0"),
    _old("0.5.11", "5.6.0"),
    _old("0.5.12.post1", "5.6.0"),
    _old("0.5.13.post1", "5.8.1"),
    Release("0.5.14", "5.8.1", "0.22.2", "1.33.0"),
    Release("0.5.15.post1", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.16", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.17", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.18", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.19", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.20", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.21", "5.12.1", "0.22.2", "1.33.0"),
    Release("0.5.22", "5.19.0", "0.23.2"),
    Release("0.5.23", "5.19.0", "0.23.3"),
)
RELEASES = {release.sglang: release for release in _ALL}
assert tuple(RELEASES) == TESTED_RELEASES
OLDEST = _ALL[0]
