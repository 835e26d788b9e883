"""What a language-model head makes of final states, and how far rounding may move it.

The logit of token v is the product of row v of the head with the post-norm state y. The engine
computes it from numbers that were rounded to the dtype of the states, and so do we. Each step that
rounds moves the elements of y by a part u of their size, u = half the distance from 1 to the next
number of the dtype; the sums are float32, with u' = 2^-24. These errors are independent, so that
the logit moves by about

    s(v) = (u + u' sqrt(H)) * sqrt(steps) * norm(head[v] * y)

and we take 4 s(v), plus the rounding of the logit itself, u |logit|, for as much as rounding can
explain. The log probability of v may move by the bound of v, by the mean bound over all tokens,
each weighted by its probability, and by a rounding of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

SPREADS = 4.0
"""So many s(v) are as much as rounding can explain."""

_TOKENS = 8192
"""Rows of the head that are taken at a time: in float32 a large head is larger than memory."""

_ACCUMULATED = torch.finfo(torch.float32).eps / 2


@dataclass(frozen=True)
class Scores:
    """What the head says of N states; tensors are float64 [N], `top` is int64.

    `top` is the most likely token, `logit` and `logprob` are those of the tokens asked for; each
    has the bound on what rounding can explain.
    """

    top: torch.Tensor
    top_logit: torch.Tensor
    top_bound: torch.Tensor
    logit: torch.Tensor
    logit_bound: torch.Tensor
    logprob: torch.Tensor
    logprob_bound: torch.Tensor


def score(
    states: torch.Tensor, tokens: torch.Tensor, head: torch.Tensor, dtype: torch.dtype, steps: int
) -> Scores:
    """Apply `head` [V, H] to post-norm states [N, H], and ask for `tokens`, int64 [N], below V.

    `dtype` is that of the stored states, `steps` how often they were rounded independently of the
    engine's own.
    """
    states = states.to(torch.float32)
    count, hidden = states.shape
    unit = torch.finfo(dtype).eps / 2
    spread = SPREADS * (unit + _ACCUMULATED * math.sqrt(hidden)) * math.sqrt(steps)
    squares = states.square()
    rows = torch.arange(count)

    def empty(value: float) -> torch.Tensor:
        return torch.full((count,), value, dtype=torch.float64)

    top = torch.zeros(count, dtype=torch.int64)
    top_logit, top_bound = empty(-math.inf), empty(0)
    logit, logit_bound = empty(math.nan), empty(0)
    # The sums of exp(logit - top_logit), and of the same times the bound.
    total, weighted = empty(0), empty(0)
    for start in range(0, head.shape[0], _TOKENS):
        # The engine holds it in the dtype that it computes in.
        piece = head[start : start + _TOKENS].to(dtype).to(torch.float32)
        logits = (states @ piece.T).double()
        bounds = spread * (squares @ piece.square().T).sqrt().double() + unit * logits.abs()
        best, place = logits.max(-1)
        higher = best > top_logit
        scale = torch.where(higher, (top_logit - best).exp(), 1.0)
        top = torch.where(higher, place + start, top)
        top_bound = torch.where(higher, bounds[rows, place], top_bound)
        top_logit = torch.maximum(top_logit, best)
        likely = (logits - top_logit[:, None]).exp()
        total = total * scale + likely.sum(-1)
        weighted = weighted * scale + (likely * bounds).sum(-1)
        inside = (tokens >= start) & (tokens < start + piece.shape[0])
        column = (tokens - start).clamp(0, piece.shape[0] - 1)
        logit = torch.where(inside, logits[rows, column], logit)
        logit_bound = torch.where(inside, bounds[rows, column], logit_bound)
    logprob = logit - top_logit - total.log()
    return Scores(
        top=top,
        top_logit=top_logit,
        top_bound=top_bound,
        logit=logit,
        logit_bound=logit_bound,
        logprob=logprob,
        logprob_bound=logit_bound + weighted / total + unit * logprob.abs(),
    )
