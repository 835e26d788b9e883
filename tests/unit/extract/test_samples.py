"""Rows become token ids and masks, or are refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hs_capture import ConfigError
from hs_capture.extract.chat import ChatTokenizer
from hs_capture.extract.samples import Prompt, RowError, check_ids, prompt_of
from hs_capture.extract.source import Row, open_source

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


@pytest.mark.parametrize("kind", ["parquet", "saved"])
def test_fields_that_a_table_adds_do_not_reach_the_template(tmp_path: Path, kind: str) -> None:
    """A table has one set of fields for all messages, parts and arguments; null is for absent ones.

    So the same rows are the same tokens, whatever they are stored in.
    """
    template = (
        "{% for m in messages %}{{ m.keys() | list }} {{ m['content'] }} "
        "{% if 'calls' in m %}{{ m['calls'] | tojson }} {% endif %}<end> {% endfor %}"
    )
    one = {"role": "user", "content": "hello", "name": "one"}
    two = {"role": "user", "content": None, "calls": [{"arguments": {"two": "2"}}]}
    three = {"role": "user", "content": "hello", "calls": [{"arguments": {"three": "3"}}]}
    chats = [[one], [two], [three, two]]
    texts = []

    class Written(ChatTokenizer):
        def chat(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
            texts.append(self._tokenizer.apply_chat_template(messages, tokenize=False))
            return super().chat(messages)

    words = tokenizer(tmp_path / "words", template)
    words.__class__ = Written
    rows = [{name: chat} for name in ("messages", "conversations") for chat in chats]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = pa.Table.from_pylist([{"messages": [], "conversations": None, **row} for row in rows])
    if kind == "parquet":
        path = tmp_path / "a.parquet"
        pyarrow.parquet.write_table(table, path)
    else:
        path = tmp_path / "saved"
        path.mkdir()
        with pa.ipc.new_stream(path / "a.arrow", table.schema) as stream:
            stream.write_table(table)
        (path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    for source in (tmp_path / "a.jsonl", path):
        for row in open_source(source).rows():
            prompt_of(row, words)
    lines, columns = texts[: len(rows)], texts[len(rows) :]
    assert [sorted(text.split()) for text in columns] == [sorted(text.split()) for text in lines]
    assert "2" in lines[1]
    assert "'name'" not in lines[1] + lines[2]


def test_a_null_field_of_a_message_is_absent_but_for_the_content(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if 'calls' in m %}one {% endif %}"
        "{% if m['content'] is none %}two {% else %}three {% endif %}{% endfor %}"
    )
    chat = [{"role": "user", "content": "x", "calls": None}, {"role": "user", "content": None}]
    assert prompt({"messages": chat}, tokenizer(tmp_path, template)).input_ids.tolist() == [8, 7]


def test_a_chat_that_begins_with_the_assistant(tmp_path: Path) -> None:
    """A template that marks his words has the right mask; else it would have what comes before."""
    chat = [CHAT[1], *CHAT[2:]]
    marked = prompt({"messages": chat}, tokenizer(tmp_path / "marked", MARKED))
    assert marked.input_ids.tolist() == IDS[4:]
    assert marked.loss_mask == ((1, 4), (8, 10))
    plain = tokenizer(tmp_path / "plain", "hello world " + PLAIN)
    with pytest.raises(RowError, match=r"begins with the assistant, .*; give input_ids and"):
        prompt({"messages": chat}, plain)
    system = {"role": "user", "content": "one"}
    after = prompt({"messages": [system, *chat]}, plain)
    assert after.loss_mask == ((6, 9), (13, 15))


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
