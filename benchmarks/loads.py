"""What overhead.py asks of its engines: prompts of random tokens, and how they are sent."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

PROMPT_TOKENS = 1024
SHARED_TOKENS = 2048
OWN_TOKENS = 128
"""What a prompt of the shared load has besides."""
FIRST_ORDINARY_TOKEN = 100


@dataclass(frozen=True)
class Load:
    """One kind of load."""

    name: str
    prompts: int
    new_tokens: int
    shared_tokens: int = 0
    """So many tokens begin every prompt of a round."""
    own_tokens: int = PROMPT_TOKENS
    at_once: int | None = None
    """How many prompts are under way at a time; None for all, in one call."""


def loads_of(prompts: int) -> dict[str, Load]:
    """The loads, by name, for the given number of prompts."""
    loads = (
        Load("prefill", prompts, 1),
        Load("mixed", prompts // 2, 128, at_once=32),
        Load("shared", prompts, 1, SHARED_TOKENS, OWN_TOKENS, at_once=8),
    )
    return {load.name: load for load in loads}


def prompts_of(load: Load, seed: int, vocabulary: int) -> list[list[int]]:
    """Return the prompts of a round. No round has a prompt of another one, should a cache be on."""
    dice = random.Random(f"{load.name} {seed}")
    ordinary = range(FIRST_ORDINARY_TOKEN, vocabulary - 10)
    beginning = dice.choices(ordinary, k=load.shared_tokens)
    return [[*beginning, *dice.choices(ordinary, k=load.own_tokens)] for _ in range(load.prompts)]


def answer(llm: Any, load: Load, prompts: list[list[int]], extra: dict[str, Any]) -> list[float]:
    """Have `llm`, a ``sglang.Engine``, answer `prompts`; return the seconds between tokens."""
    sampling = {"max_new_tokens": load.new_tokens, "temperature": 0, "ignore_eos": True}
    if load.at_once is None:
        llm.generate(input_ids=prompts, sampling_params=sampling, **extra)
        return []
    gaps: list[float] = llm.loop.run_until_complete(
        _some_at_once(llm, prompts, load.at_once, {"sampling_params": sampling, **extra})
    )
    return gaps


async def _some_at_once(
    llm: Any, prompts: list[list[int]], at_once: int, arguments: dict[str, Any]
) -> list[float]:
    """Answer `prompts`, `at_once` at a time.

    Answers are streamed, but for those with hidden states: SGLang would send all of a prompt's
    states again with each token.
    """
    gate = asyncio.Semaphore(at_once)
    gaps: list[float] = []

    async def one(prompt: list[int]) -> None:
        async with gate:
            if arguments.get("return_hidden_states"):
                await llm.async_generate(input_ids=prompt, **arguments)
                return
            last = None
            async for _ in await llm.async_generate(input_ids=prompt, stream=True, **arguments):
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now

    await asyncio.gather(*map(one, prompts))
    return gaps
