"""What the engine said of single rows, held against the head over the stored states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hs_capture.norm import rms_norm
from hs_capture.verify.evidence import ROWS
from hs_capture.verify.head import score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hs_capture.captured_request import Capture, FinalState
    from hs_capture.extract.answer import Answer
    from hs_capture.verify.checkpoint import Checkpoint

_OWN_STEPS = 3
"""The stored state was rounded, and on either side what comes out of the norm."""
_LAYER_STEPS = 4
"""What a layer adds to the residual stream, twice, was rounded; in another batch, differently."""


@dataclass(frozen=True)
class Claim:
    """The engine's word on row `row`: `token` comes next.

    Either the engine chose it as the most likely one, or it gave the natural logarithm of its
    probability.
    """

    row: int
    token: int
    logprob: float | None


@dataclass(frozen=True)
class Finding:
    """A claim beside what the stored state gives.

    For a choice `difference` is how much more the head gives the token that it prefers, `found`,
    0 if that is the same one. For a probability it is the distance of the two logarithms.
    """

    claim: Claim
    found: float
    difference: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the difference; a NaN it does not."""
        return self.difference <= self.bound

    def text(self) -> str:
        """What differs, for people."""
        claim = self.claim
        if claim.logprob is None:
            return (
                f"row {claim.row}: the engine chose token {claim.token}, the stored state gives "
                f"token {self.found:.0f}, {self.difference:.3g} higher where rounding explains "
                f"{self.bound:.2g}"
            )
        return (
            f"row {claim.row}: the engine gave token {claim.token} the logprob "
            f"{claim.logprob:.6g}, the stored state gives {self.found:.6g}, {self.difference:.3g} "
            f"apart where rounding explains {self.bound:.2g}"
        )


class OtherPromptError(Exception):
    """The answer is to another prompt than that of the capture."""


def claims_of(capture: Capture, answer: Answer, vocab_size: int, tokens: int) -> list[Claim]:
    """What the answer says of the rows that the capture has, at most `ROWS` of them, and the last.

    The answer is to the first `tokens` of its tokens. Raises `OtherPromptError`.
    """
    ids = capture.input_ids.tolist()[:tokens]
    first = len(ids) - len(answer.logprobs)
    # SGLang writes 0 for the last token of the vocabulary, which it takes for the hash of an image.
    known = [token if token < vocab_size - 1 else 0 for token in ids]
    for place, (token, _) in enumerate(answer.logprobs, start=first):
        if place < 0 or token not in (ids[place], known[place]):
            held = "no token" if place < 0 else f"token {ids[place]}"
            raise OtherPromptError(
                f"place {place} of the prompt holds {held}, in the engine's answer token {token}"
            )
    said = [
        Claim(place - 1, token, logprob)
        for place, (token, logprob) in enumerate(answer.logprobs, start=first)
        if logprob is not None and place > 0 and token == ids[place]
    ]
    # Evenly spread, where there are more.
    stride = -(-len(said) // ROWS) or 1
    said = said[::-stride][::-1]
    if answer.next_token is not None:
        said.append(Claim(len(ids) - 1, answer.next_token, None))
    gone = capture.missing
    return [c for c in said if not any(start <= c.row < stop for start, stop in gone)]


def findings(
    capture: Capture,
    state: FinalState,
    claims: list[Claim],
    checkpoint: Checkpoint,
    *,
    asked_again: bool,
) -> list[Finding]:
    """Hold claims against the final states of a capture that are stored as `state`.

    Every token has to be in the vocabulary of the checkpoint. Raises what reading a capture does.
    """
    states = _states(capture, state, [claim.row for claim in claims]).to(torch.float32)
    if state == "pre_norm":
        states = rms_norm(states, checkpoint.norm, checkpoint.eps)
    tokens = torch.tensor([claim.token for claim in claims])
    steps = _OWN_STEPS + _LAYER_STEPS * checkpoint.num_layers * asked_again
    scores = score(states, tokens, checkpoint.head, capture.dtype, steps)
    return list(_compared(claims, scores.__dict__))


def _compared(claims: list[Claim], scores: dict[str, torch.Tensor]) -> Iterator[Finding]:
    told = {name: values.tolist() for name, values in scores.items()}
    for n, claim in enumerate(claims):
        if claim.logprob is None:
            gap = told["top_logit"][n] - told["logit"][n]
            bound = told["top_bound"][n] + told["logit_bound"][n]
            yield Finding(claim, told["top"][n], gap, bound)
        else:
            apart = abs(told["logprob"][n] - claim.logprob)
            yield Finding(claim, told["logprob"][n], apart, told["logprob_bound"][n])


def _states(capture: Capture, state: FinalState, rows: list[int]) -> torch.Tensor:
    """The states of these rows, [rows, H]; only a long capture is read in parts."""
    first, last = min(rows), max(rows)
    if all(not first <= start <= last for start, _ in capture.missing):
        read = capture.last_hidden_states(state, (first, last + 1))
        return read[torch.tensor(rows) - first]
    return torch.cat([capture.last_hidden_states(state, (row, row + 1)) for row in rows])
