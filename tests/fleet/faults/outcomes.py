"""What was committed, and how it differs from an undisturbed run."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from lookout.v1.alerts_pb2 import Alert
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import ALERTS, VERDICTS, from_json

#: camera, number of the epoch, watch, its version, window (or kind of alert)
Place = tuple[str, int, str, int, int]
#: batches of other cameras move the last digits of a float32 sum
SAME = 1e-4


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything committed in verdicts.v1 and alerts.v1, by id."""

    verdicts: Mapping[str, list[Verdict]]
    alerts: Mapping[str, list[Alert]]

    @property
    def outcomes(self) -> int:
        """Different outcomes."""
        return len(self.verdicts)


@dataclass(frozen=True, slots=True)
class Score:
    """`expected` outcomes by the plan of the run; `doubled` and `changed` should be nought."""

    expected: int
    committed: int
    doubled: int
    changed: int

    @property
    def clean(self) -> bool:
        """One committed outcome each, equal to the undisturbed run's."""
        return self.expected == self.committed and self.doubled == self.changed == 0

    def to_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def read(bootstrap: str) -> Committed:
    """Read both topics to their ends, committed records only."""
    verdicts: dict[str, list[Verdict]] = {}
    for value in _values(bootstrap, VERDICTS.name):
        verdict = from_json(value, Verdict)
        verdicts.setdefault(verdict.id, []).append(verdict)
    alerts: dict[str, list[Alert]] = {}
    for value in _values(bootstrap, ALERTS.name):
        alert = from_json(value, Alert)
        alerts.setdefault(alert.id, []).append(alert)
    return Committed(verdicts, alerts)


def compare(expected: int, calm: Committed, stormy: Committed) -> tuple[Score, list[str]]:
    """The score of the disturbed run, and a line for each difference."""
    differences = []
    doubled = sum(len(each) - 1 for each in stormy.verdicts.values())
    differences += [
        f"verdict {key}: {len(each)} times" for key, each in stormy.verdicts.items() if len(each) > 1
    ]
    changed = 0
    first, second = _by_place(calm), _by_place(stormy)
    for key in {*first, *second}:
        before, after = first.get(key), second.get(key)
        if before is None or after is None or not _same(before[0], after[0]):
            changed += 1
            differences.append(f"{_name(before)} became {_name(after)}")
    doubled += sum(len(each) - 1 for each in stormy.alerts.values())
    raised, again = _alerts_by_place(calm), _alerts_by_place(stormy)
    for place in sorted({*raised, *again}):
        if raised[place] != again[place]:
            changed += 1
            counts = f"{raised[place]} in the calm run, {again[place]} in the disturbed one"
            differences.append(f"alerts of {place}: {counts}")
    return Score(expected, stormy.outcomes, doubled, changed), differences


def _by_place(committed: Committed) -> dict[Place, list[Verdict]]:
    """Verdicts by what two runs have in common: epochs are numbered by the time of the run."""
    order = _epoch_order((each[0].camera, each[0].epoch) for each in committed.verdicts.values())
    places: dict[Place, list[Verdict]] = {}
    for each in committed.verdicts.values():
        one = each[0]
        place = (one.camera, order[one.camera, one.epoch], one.watch, one.watch_version, one.window)
        places.setdefault(place, []).extend(each)
    return places


def _alerts_by_place(committed: Committed) -> Counter[Place]:
    order = _epoch_order((each[0].camera, each[0].epoch) for each in committed.alerts.values())
    return Counter(
        (one.camera, order[one.camera, one.epoch], one.watch, one.watch_version, int(one.kind))
        for one, *_ in committed.alerts.values()
    )


def _epoch_order(epochs: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """The number of each epoch among those of its camera, from 0."""
    known = sorted(set(epochs))
    first = {camera: at for at, (camera, _) in reversed(list(enumerate(known)))}
    return {key: at - first[key[0]] for at, key in enumerate(known)}


def kinds(committed: Committed) -> dict[str, int]:
    """Outcomes by kind."""
    return dict(Counter(Verdict.Outcome.Name(each[0].outcome) for each in committed.verdicts.values()))


def _same(before: Verdict, after: Verdict) -> bool:
    return (
        before.outcome == after.outcome
        and abs(before.p_yes - after.p_yes) <= SAME
        and (before.stream_start_s, before.stream_end_s) == (after.stream_start_s, after.stream_end_s)
        and before.coverage == after.coverage
    )


def _name(verdicts: list[Verdict] | None) -> str:
    if verdicts is None:
        return "nothing"
    one = verdicts[0]
    where = f"{one.camera}/{one.epoch} window {one.window} {one.watch}"
    return f"{where} {Verdict.Outcome.Name(one.outcome)} {one.p_yes:.6f} {one.coverage:.2f} {one.reason}"


def _values(bootstrap: str, topic: str) -> Iterable[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=60.0).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    ended: set[int] = set()
    try:
        while len(ended) < len(partitions):
            message = consumer.poll(60.0)
            if message is None:
                raise TimeoutError(f"{topic} cannot be read to its end")
            error = message.error()
            if error is None:
                yield message.value() or b""
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
    finally:
        consumer.close()
