"""Rows become token ids and masks, or are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hs_capture import ConfigError
from hs_capture.extract.chat import ChatTokenizer
from hs_capture.extract.samples import Prompt, RowError, check_ids, prompt_of
from hs_capture.extract.source import Row

WORDS = ["<unk>", "<user>", "<assistant>", "<end>", "hello", "world", "one", "two", "three"]
PLAIN = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m['role'] }}> "
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} <end>{% endgeneration %} "
    "{% else %}{{ m['content'] }} <end> {% endif %}{% endfor %}"
)
FORGETFUL = "{{ messages[-1]['content'] }}"
CHAT = [
    {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": "one two"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "three"},
]
IDS = [1, 4, 5, 3, 2, 6, 7, 3, 1, 4, 3, 2, 8, 3]
MASK = ((5, 8), (12, 14))


def tokenizer(folder: Path, template: str) -> ChatTokenizer:
    """A tokenizer of nine words, saved and loaded again."""
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    made.chat_template = template
    made.save_pretrained(folder)
    return ChatTokenizer(folder)


def prompt(columns: dict[str, Any], with_tokenizer: ChatTokenizer | None = None) -> Prompt:
    return prompt_of(Row(7, "row 7", columns), with_tokenizer)


def test_token_ids_with_their_mask() -> None:
    found = prompt({"id": 12, "input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], "text": "unused"})
    assert found.input_ids.tolist() == [5, 6, 7]
    assert (found.number, found.place, found.id, found.loss_mask) == (7, "row 7", "12", ((1, 3),))


def test_without_a_mask_all_tokens_count_and_without_an_id_the_number() -> None:
    found = prompt({"input_ids": [5, 6, 7]})
    assert (found.id, found.loss_mask) == ("7", ((0, 3),))


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_the_mask_of_a_chat_is_over_what_the_assistant_says(tmp_path: Path, template: str) -> None:
    """Whether the template marks it or not; the end token is said by the assistant, too."""
    found = prompt({"messages": CHAT}, tokenizer(tmp_path, template))
    assert found.input_ids.tolist() == IDS
    assert found.loss_mask == MASK


def test_sharegpt_names_mean_the_same(tmp_path: Path) -> None:
    names = {"user": "human", "assistant": "gpt"}
    chat = [{"from": names[m["role"]], "value": m["content"]} for m in CHAT]
    found = prompt({"conversations": chat}, tokenizer(tmp_path, PLAIN))
    assert found.input_ids.tolist() == IDS
    assert found.loss_mask == MASK


def test_a_text_is_tokenized_and_counts_as_a_whole(tmp_path: Path) -> None:
    found = prompt({"text": "hello two world"}, tokenizer(tmp_path, PLAIN))
    assert found.input_ids.tolist() == [4, 7, 5]
    assert found.loss_mask == ((0, 3),)


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RowError, match="does not repeat the first 1 messages as they are"):
        prompt({"messages": CHAT}, tokenizer(tmp_path, FORGETFUL))


def test_marks_that_run_together_are_refused(tmp_path: Path) -> None:
    """A mark that ends with a blank that is no token: transformers would mark all that follows."""
    template = MARKED.replace("<end>{% endgeneration %} ", "<end> {% endgeneration %}")
    with pytest.raises(RowError, match="the chat template marks 1 of 2 answers"):
        prompt({"messages": CHAT}, tokenizer(tmp_path, template))


def test_a_template_that_fails_is_a_bad_row(tmp_path: Path) -> None:
    template = "{{ raise_exception('no system message') }}"
    with pytest.raises(RowError, match="does not take this chat: no system message"):
        prompt({"messages": CHAT}, tokenizer(tmp_path, template))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": []}, "the sample is empty"),
        ({"input_ids": [1.5]}, "not a list of whole numbers"),
        ({"input_ids": [True]}, "not a list of whole numbers"),
        ({"input_ids": [1 << 70]}, "a number that is no token id"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "loss_mask has 1 values for 2 tokens"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "not a list of 0 and 1"),
        ({"input_ids": [1, 2], "loss_mask": 1}, "not a list of 0 and 1"),
        ({"messages": CHAT}, "give --tokenizer"),
        ({"x": 1, "y": 2}, "it has x, y"),
        ({}, "it has nothing"),
    ],
)
def test_bad_rows_say_what_is_wrong(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError, match=message):
        prompt(columns)


def test_bad_messages_and_texts_say_what_is_wrong(tmp_path: Path) -> None:
    words = tokenizer(tmp_path, PLAIN)
    with pytest.raises(RowError, match="neither role and content nor from and value"):
        prompt({"messages": [{"content": "x"}]}, words)
    with pytest.raises(RowError, match="text is int, not a string"):
        prompt({"text": 3}, words)
    with pytest.raises(RowError, match="the sample is empty"):
        prompt({"text": ""}, words)


def test_ids_that_the_model_does_not_have() -> None:
    check_ids(prompt({"input_ids": [0, 8]}), 9)
    with pytest.raises(RowError, match="token 2 is 9, the model has the ids 0 to 8"):
        check_ids(prompt({"input_ids": [0, 8, 9]}), 9)


def test_the_digest_follows_the_template(tmp_path: Path) -> None:
    one, other = tokenizer(tmp_path / "a", PLAIN), tokenizer(tmp_path / "b", MARKED)
    assert one.digest() == tokenizer(tmp_path / "c", PLAIN).digest() != other.digest()


def test_no_tokenizer_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer could be loaded"):
        ChatTokenizer(tmp_path)
