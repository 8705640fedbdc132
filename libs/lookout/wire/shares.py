"""Converts the probabilities of a structured question's allowed answers to messages and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lookout.v1.verdicts_pb2 import AnswerShare


def share_messages(answers: Mapping[str, float]) -> list[AnswerShare]:
    """Return the probabilities of allowed answers as messages."""
    return [AnswerShare(answer=answer, p=p) for answer, p in answers.items()]


def shares_of(messages: Iterable[AnswerShare]) -> dict[str, float]:
    """Return the probabilities by allowed answer; the inverse of `share_messages`."""
    return {message.answer: message.p for message in messages}
