"""Text comes in pieces that nothing changes any more, and ends before a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lookout.models.engines.text import TextBuffer


def decode(ids: Sequence[int]) -> str:
    """Bytes as a byte-level tokenizer has them."""
    return bytes(ids).decode(errors="replace")


def pieces(text: str, stop: Sequence[str] = ()) -> list[str]:
    buffer, out = TextBuffer(decode, stop), []
    for token in text.encode():
        out.append(buffer.add(token))
        if buffer.over:
            return out
    return [*out, buffer.end()]


@pytest.mark.parametrize("text", ["a yard", "äöü: 7 °C", "", "日本"])
def test_the_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert "�" not in "".join(pieces(text))


def test_half_a_character_waits_for_its_other_bytes() -> None:
    assert pieces("é!") == ["", "é", "!", ""]
    buffer = TextBuffer(decode)
    assert (buffer.add("é".encode()[0]), buffer.end()) == ("", "�")


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["END"], "one "),
        (["ND", "E"], "one "),
        (["e E"], "on"),
        (["never"], "one END two"),
        ([""], "one END two"),
    ],
)
def test_a_text_ends_before_the_first_stop_string(stop: list[str], expected: str) -> None:
    assert "".join(pieces("one END two", stop)) == expected


def test_half_a_stop_string_is_shown_once_it_is_none() -> None:
    assert pieces("xE!", ["END"]) == ["x", "", "E!", ""]
