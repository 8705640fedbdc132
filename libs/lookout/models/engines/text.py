"""Converts token ids to text as they arrive, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "�"
"""What a tokenizer's decoder returns for a character whose bytes are still incomplete."""


class TextBuffer:
    """Converts token ids to pieces of text that later tokens can no longer change.

    Args:
        decode: Converts token ids to text.
        stop: The text ends before the first occurrence of any of these strings.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, [string for string in stop if string]
        self._ids: list[int] = []
        self._shown = 0
        self.over = False

    def add(self, token: int) -> str:
        """Add a token and return the next piece of text; "" while that text may still change. A stop string
        sets `over`."""
        self._ids.append(token)
        text = self._decode(self._ids)
        stop_starts = [place for string in self._stop if (place := text.find(string)) >= 0]
        if stop_starts:
            self.over = True
            return self._piece(text, min(stop_starts))
        return self._piece(text, len(text) - self._uncertain(text))

    def end(self) -> str:
        """Return the last piece of text. Call this after the last token."""
        text = self._decode(self._ids) if self._ids and not self.over else ""
        return self._piece(text, len(text))

    def _piece(self, text: str, stop: int) -> str:
        piece = text[self._shown : stop]
        self._shown = max(self._shown, stop)
        return piece

    def _uncertain(self, text: str) -> int:
        """Return the number of characters at the end that may still change: an incomplete character, or the
        beginning of a stop string."""
        if text.endswith(UNFINISHED):
            return len(text) - len(text.rstrip(UNFINISHED))
        return max(
            (
                size
                for string in self._stop
                for size in range(1, min(len(string), len(text) + 1))
                if text.endswith(string[:size])
            ),
            default=0,
        )
