"""The probabilities of a structured question's allowed answers, as messages have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lookout.v1.verdicts_pb2 import AnswerShare


def share_messages(answers: Mapping[str, float]) -> list[AnswerShare]:
    """The probabilities of allowed answers for the wire."""
    return [AnswerShare(answer=answer, p=p) for answer, p in answers.items()]


def shares_of(messages: Iterable[AnswerShare]) -> dict[str, float]:
    """The inverse of `share_messages`."""
    return {message.answer: message.p for message in messages}
