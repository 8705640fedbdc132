"""Where p(yes) is read: after a closed thought, from one token for yes and another for no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lookout.models.families import LAYOUT_FILE, close_thought, load_layout, load_tokenizer
from lookout.models.families.layout import before_words
from lookout.models.windows import WindowError
from tests.tiny_models import checkpoint, published

THINKS = "<|im_start|>assistant\n{}"


def folder_with(folder: Path, *, template: str = "", family: str = "qwen3_vl", own: object = None) -> Path:
    """A checkpoint with another end of its chat template, or a layout of its own."""
    folder.mkdir(exist_ok=True)
    for source in (published(family) if template else checkpoint(family)).iterdir():
        (folder / source.name).symlink_to(source)
    if template:
        path = folder / "chat_template.json"
        text = json.loads(path.read_text())["chat_template"]
        path.unlink()
        ended = text.replace(THINKS.format(""), THINKS.format(template))
        assert ended != text
        path.write_text(json.dumps({"chat_template": ended}))
    if own is not None:
        (folder / LAYOUT_FILE).write_text(json.dumps(own))
    return folder


@pytest.mark.parametrize(
    ("end", "closed"),
    [
        ("<think>\n", "<think>\n\n</think>\n\n"),
        ("<think>", "<think>\n\n</think>\n\n"),
        ("<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("<thought>\nLet me look.", "<thought>\nLet me look.\n\n</thought>\n\n"),
        (
            "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
            "<think>\n\n</think>\n\n",
        ),
        ("Yes or no: ", "Yes or no: "),
    ],
)
def test_a_thought_that_the_template_opens_is_closed_before_the_answer(
    tmp_path: Path, end: str, closed: str
) -> None:
    folder = folder_with(tmp_path, template=end)
    tail = load_tokenizer(folder).decode(load_layout(folder).question_tail)
    assert tail.endswith(THINKS.format(closed))
    assert close_thought(tail) == tail


def test_a_layout_that_leaves_a_thought_open_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, own={"question_tail": "<think>\n"})
    with pytest.raises(WindowError, match=r"question_tail leaves a thought open: close it"):
        load_layout(folder)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"yes": "Indeed"}, "the answer 'Indeed' is 6 tokens"),
        ({"no": ""}, "the answer '' is 0 tokens"),
        ({"no": "Yes"}, "the same token for the answers 'Yes' and 'Yes'"),
    ],
)
def test_answers_are_one_token_each_and_two_different_ones(
    tmp_path: Path, own: dict[str, str], words: str
) -> None:
    folder = folder_with(tmp_path, own=own)
    with pytest.raises(WindowError, match=words) as refused:
        load_layout(folder)
    assert LAYOUT_FILE in str(refused.value)


def test_newlines_in_front_of_a_question_are_tokenised_as_in_the_whole_prompt() -> None:
    """A tokenizer that splits as GPT-2's makes one token of two newlines at the end of a text alone."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    newline = "\u010a"
    vocabulary = {letter: number for number, letter in enumerate([*letters, 2 * newline])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(newline, newline)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text).ids)

    assert len(encode("\n\n")) == 1
    for head in ("", "\n", "\n\n", "user\n\n", "question: "):
        assert (*before_words(encode, head), *encode("Why?")) == encode(f"{head}Why?")
