"""The score of one label."""

from __future__ import annotations

from collections.abc import Iterable

from lookout.past.backtests.labels import LabelScores
from lookout.rules import Rule
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import LabelScore
from lookout.v1.verdicts_pb2 import Verdict


def score_of(label: Label, verdicts: Iterable[Verdict], rule: Rule) -> LabelScore:
    """The score of a label by the verdicts of its camera, which come in the order of time."""
    scores = LabelScores([label], rule)
    for verdict in verdicts:
        if verdict.HasField("p_yes"):
            scores.add(label.camera, verdict.end.ToMilliseconds(), verdict.p_yes)
    return scores.scores()[0]
