"""Answers of two servers, made comparable."""

from __future__ import annotations

from typing import Any

# What SGLang says about the time an answer took, which is never the same twice.
TIMES = {"e2e_latency", "response_sent_to_client_ts"}


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the times in it."""
    meta = {name: value for name, value in answer["meta_info"].items() if name not in TIMES}
    return {**answer, "meta_info": meta}
