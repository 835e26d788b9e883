"""Proof by the model's own head: could these states be the model's, of these requests?

The head of the checkpoint, over stored final states, has to say what the engine said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch

from hs_capture.captured_request import Capture, FinalState
from hs_capture.counted import count_text
from hs_capture.errors import ConfigError, FormatError, StoreNotFoundError
from hs_capture.store import open_store
from hs_capture.tensors import to_tensor
from hs_capture.verify.claims import Finding, OtherPromptError, claims_of, findings
from hs_capture.verify.evidence import AnswerMissingError, Witness
from hs_capture.verify.report import Check, Proof

if TYPE_CHECKING:
    from hs_capture.format.run import RunInfo
    from hs_capture.verify.checkpoint import Checkpoint

NAMED = 10
"""So many disagreements are named; all are counted."""
_TOLERATED = 0.1
"""The part of a capture's rows that may disagree where the engine computed them a second time in
half precision: a router on the edge may then choose another expert."""
_HINT = (
    "do not train on it: these states are of another checkpoint, layer, norm, row or request than "
    "they say"
)


@dataclass
class _Tally:
    captures: int = 0
    agreeing: int = 0
    tokens: int = 0
    tokens_equal: int = 0
    logprobs: int = 0
    logprobs_agreeing: int = 0
    largest: float = 0.0
    largest_bound: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def add(self, found: Sequence[Finding]) -> None:
        for finding in found:
            if finding.claim.logprob is None:
                self.tokens += 1
                self.tokens_equal += finding.found == finding.claim.token
            else:
                self.logprobs += 1
                self.logprobs_agreeing += finding.agrees
                if finding.difference >= self.largest:
                    self.largest, self.largest_bound = finding.difference, finding.bound


def prove(
    runs: Sequence[Path],
    checkpoint: Checkpoint,
    witness: Witness,
    sample: int | None,
    tell: Callable[[int], None],
) -> Proof:
    """Compare the newest `sample` captures of each run (None: all) that the witness knows.

    `tell` is called after each with the number of captures compared so far.

    Raises `ConfigError` when there are captures and none of them can be compared.
    """
    tally = _Tally()
    for run in runs:
        with suppress(StoreNotFoundError):
            _look_at_run(run, checkpoint, witness, sample, tally, tell)
    compared = tally.captures or tally.problems
    if not compared and tally.left_out:
        raise ConfigError(
            f"no capture can be compared with {checkpoint.path} by {witness.name}: "
            f"{_left_out(tally)}"
        )
    return Proof(tuple(_checks(tally, checkpoint, witness)), *_told(tally, checkpoint, witness))


def _look_at_run(
    run: Path,
    checkpoint: Checkpoint,
    witness: Witness,
    sample: int | None,
    tally: _Tally,
    tell: Callable[[int], None],
) -> None:
    try:
        store = open_store(run)
    except FormatError as error:
        raise ConfigError(str(error)) from error
    other = next((text for info in store.runs for text in _another_model(info, checkpoint)), None)
    if other is not None:
        tally.problems.append({"run": run.name, "rid": None, "text": f"run {run.name}: {other}"})
    if any(info.hidden_size != checkpoint.hidden_size for info in store.runs):
        return
    left = len(store) if sample is None else sample
    for position in reversed(range(len(store))):
        capture = store.at(position)
        if left and (witness.rids is None or capture.rid in witness.rids):
            # A capture may be taken away meanwhile.
            with suppress(FileNotFoundError):
                left -= _look_at_capture(capture, run, checkpoint, witness, tally)
            tell(tally.captures)
        elif left:
            tally.left_out[f"not in {witness.name}"] += 1


def _look_at_capture(
    capture: Capture, run: Path, checkpoint: Checkpoint, witness: Witness, tally: _Tally
) -> bool:
    """Compare one capture; returns whether it could be compared."""
    place = {"run": run.name, "rid": capture.rid}
    told = f"capture {capture.rid!r} of run {run.name}"
    try:
        states = [s for s in get_args(FinalState) if s in capture.metadata["final"]]
        why = _unfit(capture, states)
        if why is None:
            # Saved answers are to the prompt; what a server is asked ends with its answer.
            tokens = capture.num_tokens if witness.asked_again else capture.prompt_tokens
            claims = claims_of(capture, witness.answer(capture), checkpoint.vocab_size, tokens)
            why = None if claims else "without an answer to one of their rows"
        if why is not None:
            raise AnswerMissingError(why)
        tally.captures += 1
        unknown = [claim for claim in claims if not 0 <= claim.token < checkpoint.vocab_size]
        if unknown:
            raise OtherPromptError(f"the checkpoint has no token {unknown[0].token}")
        agrees = True
        for state in states:
            again = witness.asked_again
            found = findings(capture, state, claims, checkpoint, asked_again=again)
            tally.add(found)
            wrong = [finding for finding in found if not finding.agrees]
            inexact = again and capture.dtype not in (torch.float32, torch.float64)
            if wrong and len(wrong) > (_TOLERATED * len(found) if inexact else 0):
                agrees = False
                text = f"{told}, {state}, {wrong[0].text()} ({len(wrong)} of {len(found)} differ)"
                first = _finding_object(wrong[0])
                tally.problems.append({**place, "state": state, **first, "text": text})
        tally.agreeing += agrees
    except AnswerMissingError as error:
        tally.left_out[str(error)] += 1
        return False
    except (OtherPromptError, FormatError) as error:
        tally.problems.append({**place, "text": f"{told}: {error}"})
    return True


def _unfit(capture: Capture, states: Sequence[FinalState]) -> str | None:
    if capture.lora is not None:
        return "with a LoRA adapter"
    if capture.weights_version:
        return "of weights that were changed after the server's start"
    return None if states else "without a final state"


def _another_model(run: RunInfo, checkpoint: Checkpoint) -> Iterator[str]:
    for what, has, other in (
        ("a hidden size of", run.hidden_size, checkpoint.hidden_size),
        ("a vocabulary of", run.vocab_size, checkpoint.vocab_size),
        ("a number of layers of", run.num_layers, checkpoint.num_layers),
    ):
        if has != other:
            yield f"its model has {what} {has}, the checkpoint {other}"
    if run.norm is not None and run.hidden_size == checkpoint.hidden_size:
        weight = to_tensor(run.norm.weight(), run.norm.dtype)
        if not torch.equal(weight, checkpoint.norm.to(weight.dtype)):
            yield "the final norm that it was served with is not that of the checkpoint"
        elif abs(run.norm.eps - checkpoint.eps) > 1e-3 * checkpoint.eps:
            yield f"its final norm has eps {run.norm.eps:g}, the checkpoint {checkpoint.eps:g}"


def _finding_object(finding: Finding) -> dict[str, Any]:
    claim = finding.claim
    return {
        "row": claim.row,
        "token": claim.token,
        "logprob": claim.logprob,
        "found": finding.found,
        "difference": finding.difference,
        "bound": finding.bound,
    }


def _left_out(tally: _Tally) -> str:
    return ", ".join(f"{count:,} {why}" for why, count in tally.left_out.items())


def _checks(tally: _Tally, checkpoint: Checkpoint, witness: Witness) -> Iterator[Check]:
    for problem in tally.problems[:NAMED]:
        yield Check("head", "fail", problem["text"], _HINT)
    if len(tally.problems) > NAMED:
        yield Check("head", "fail", f"{len(tally.problems) - NAMED:,} more; see --json", _HINT)
    if not tally.captures:
        if not tally.problems:
            yield Check("head", "warn", "there is no capture to prove", "send the server a request")
        return
    text = (
        f"{tally.agreeing:,} of {count_text(tally.captures, 'capture')} say under the head of "
        f"{checkpoint.path} what {witness.name} says: {tally.tokens_equal:,} of "
        f"{count_text(tally.tokens, 'first token')} equal"
    )
    if tally.logprobs:
        text += (
            f", {tally.logprobs_agreeing:,} of {count_text(tally.logprobs, 'prompt logprob')} "
            f"within rounding, the largest difference {tally.largest:.2g} (rounding explains "
            f"{tally.largest_bound:.2g})"
        )
    if tally.left_out:
        text += f"; left out: {_left_out(tally)}"
    yield Check("head", "fail" if tally.problems else "ok", text)


def _told(tally: _Tally, checkpoint: Checkpoint, witness: Witness) -> tuple[int, dict[str, Any]]:
    return len(tally.problems), {
        "model": str(checkpoint.path),
        "witness": witness.name,
        "captures": tally.captures,
        "agreeing": tally.agreeing,
        "first_tokens": tally.tokens,
        "first_tokens_equal": tally.tokens_equal,
        "logprobs": tally.logprobs,
        "logprobs_agreeing": tally.logprobs_agreeing,
        "largest_logprob_difference": tally.largest,
        "left_out": dict(tally.left_out),
        "problems": tally.problems,
    }
