"""The rule of a verdict comes from the version of its watch that stood when it was decided."""

from __future__ import annotations

import pytest

from lookout.rules import RuleError
from lookout.runtime.worker import Record
from lookout.runtime.worker.tables import PastRow
from lookout.services.alerts.handler import AlertsHandler
from lookout.services.alerts.watch_rules import WatchRules
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Rule, ScheduleEntry, Watch
from lookout.wire import VERDICTS, to_json

NEVER = Rule(schedule=[ScheduleEntry(weekdays=[7], start="00:00", end="00:01")])
ROWS = {
    "fall": (
        PastRow(3, to_json(Watch(id="fall", version=1, question="old?", rule=Rule(k=2, n=3)))),
        PastRow(5, b"{broken"),
        PastRow(7, to_json(Watch(id="fall", version=1, question="new?", rule=NEVER))),
    )
}


def verdict(offset: int | None, version: int = 1, window: int = 0) -> Verdict:
    """An answer that is yes."""
    message = Verdict(
        camera="gate",
        epoch=5,
        window=window,
        watch="fall",
        watch_version=version,
        question="old?",
        outcome=Verdict.OUTCOME_ANSWERED,
        p_yes=0.9,
        rule=Rule(threshold=0.5),
    )
    message.end.FromMilliseconds(1_700_000_000_000)
    if offset is not None:
        message.watches_offset = offset
    return message


def test_the_version_below_the_verdict_s_offset_counts() -> None:
    waited: list[int] = []
    rules = WatchRules(lambda key: ROWS.get(key, ()), waited.append)
    first, second = rules.rule_of(verdict(6)), rules.rule_of(verdict(8))
    assert first is not None
    assert second is not None
    assert ((first.k, first.n), len(second.schedule), waited) == ((2, 3), 1, [6, 8])
    assert rules.rule_of(verdict(None)) is None
    assert rules.question_of("fall") == "new?"


@pytest.mark.parametrize("forged", [verdict(3), verdict(8, version=2)])
def test_a_version_that_never_was_is_named(forged: Verdict) -> None:
    with pytest.raises(RuleError, match="watch 'fall' has no version"):
        WatchRules(lambda key: ROWS.get(key, ())).rule_of(forged)


def outcome_of(offset: int | None, version: int = 1) -> tuple[int, str]:
    """How many alerts a verdict gives, and the reason of its dead letter."""
    handler = AlertsHandler(lambda *_: True, watch_rules=WatchRules(lambda key: ROWS.get(key, ())))
    record = Record(VERDICTS.name, 0, 0, "gate", to_json(verdict(offset, version)))
    result = handler.handle(handler.load("gate", None), record)
    return len(result.outputs), result.dead_letter.reason if result.dead_letter else ""


def test_the_handler_follows_the_watch_and_old_verdicts_their_own_rule() -> None:
    assert outcome_of(None) == (1, "")
    assert outcome_of(8) == (0, "")  # the schedule is never
    assert outcome_of(8, version=9) == (0, "bad-verdict")
