"""Capture under CUDA graphs, against capture in eager mode: same model, same prompts, one GPU.

    python tests/gpu/prefill_graphs.py --model CONFIG_DIR

Run by hand on a machine with a GPU; no part of `make test`. See `engines.py` for what is compared.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from engines import run_modes

LAYERS = "-1,1,12,23"
MODES: dict[str, dict[str, Any]] = {
    "eager": {"disable_cuda_graph": True},
    "decode graphs": {"cuda_graph_backend_prefill": "disabled", "cuda_graph_max_bs_decode": 8},
    "breakable": {"cuda_graph_backend_prefill": "breakable", "cuda_graph_max_bs_decode": 8},
    "tc_piecewise": {"cuda_graph_backend_prefill": "tc_piecewise", "cuda_graph_max_bs_decode": 8},
}


def main() -> int:
    """Run every mode and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args()
    chosen = {mode: MODES[mode] for mode in options.modes.split(",")}
    return 0 if run_modes(options.model, LAYERS, chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
