"""Answers of SGLang tell of the model's output, or are named as something else."""

from __future__ import annotations

from typing import Any

import pytest

from hs_capture import FormatError
from hs_capture.extract.answer import Answer, answer_of

LOGPROBS = [[None, 4, None], [-1.5, 9, None], [-2, 7, " text"]]


def test_an_answer_with_logprobs() -> None:
    said = {"output_ids": [12, 3], "meta_info": {"id": "r", "input_token_logprobs": LOGPROBS}}
    assert answer_of(said, "x") == Answer("r", 12, ((4, None), (9, -1.5), (7, -2.0)))


def test_the_first_token_is_also_found_among_the_logprobs_of_the_output() -> None:
    said = {"rid": "own", "meta_info": {"id": "r", "output_token_logprobs": [[-0.1, 5, None]]}}
    assert answer_of(said, "x") == Answer("own", 5, ())


def test_an_answer_that_tells_nothing_is_one() -> None:
    assert answer_of({"text": ""}, "x") == Answer(None, None, ())
    assert answer_of({"output_ids": [], "meta_info": None}, "x") == Answer(None, None, ())


@pytest.mark.parametrize(
    "said",
    [
        [],
        "text",
        {"output_ids": ["a"]},
        {"output_ids": 3},
        {"meta_info": {"input_token_logprobs": [[-1.0]]}},
        {"meta_info": {"input_token_logprobs": [["much", 3, None]]}},
        {"meta_info": {"input_token_logprobs": 7}},
        {"meta_info": {"output_token_logprobs": [None]}},
    ],
)
def test_anything_else_is_refused_with_its_place(said: Any) -> None:
    with pytest.raises(FormatError, match=r"^file: line 3: "):
        answer_of(said, "file: line 3")
