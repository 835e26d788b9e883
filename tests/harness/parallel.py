"""Servers of several ranks on one machine, by gloo."""

from __future__ import annotations

from collections.abc import Mapping

# SGLang binds each rank to cores, and would look for a library of NVIDIA's.
ENVIRONMENT: Mapping[str, str] = {
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
    "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
}
