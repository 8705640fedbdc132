"""What was committed, and how it differs from an undisturbed run."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from lookout.past.verification import Kind, Tally
from lookout.streams import MAX_DAMAGE
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import ALERTS, TOKENS, VERDICTS, from_json
from tests.fleet.faults.footage import FPS
from tests.fleet.faults.remembered import Remembered

#: camera, number of the epoch, watch, its version, window (or kind of alert)
Place = tuple[str, int, str, int, int]
#: batches of other cameras move the last digits of a float32 sum
SAME = 1e-4
#: a window that reuses the KV of the one before, against the same window computed whole
REUSED = 0.05
WALL_MS = 1_700_000_000_000  # when the cameras begin, in every run
SAMPLES_S = 2  # samples a second


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything committed: verdicts and alerts by id, and the keep masks of each stride block, by camera,
    epoch and block."""

    verdicts: Mapping[str, list[Verdict]]
    alerts: Mapping[str, list[Alert]]
    masks: Mapping[tuple[str, int, int], tuple[bytes, ...]]

    @property
    def outcomes(self) -> int:
        """Different outcomes."""
        return len(self.verdicts)


@dataclass(frozen=True, slots=True)
class Score:
    """Outcomes of a disturbed run. `expected`: by the plan of the run. `doubled`: ids that were committed
    twice. `unverified`: outcomes that are no answer, or that a replay out of Kafka does not confirm (windows
    of a camera that loses packets may be without an answer). `unmarked`: answers to windows more damaged
    than an answered window may be. `different`: masks and answers that are not those of an undisturbed run.
    `misremembered`: chapters and frames that are not as they were born."""

    expected: int
    committed: int
    doubled: int
    unverified: int
    unmarked: int
    different: int
    misremembered: int

    @property
    def clean(self) -> bool:
        """One committed outcome each, every one computed again with the same p(yes), damage marked."""
        wrong = (self.doubled, self.unverified, self.unmarked, self.different, self.misremembered)
        return self.expected == self.committed and not any(wrong)

    def to_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def score(
    expected: int,
    committed: Committed,
    tally: Tally,
    damaged: Mapping[str, set[int]],
    *,
    memory: Remembered,
    undisturbed: Committed,
) -> tuple[Score, list[str]]:
    """The score of a disturbed run, and a line for each fault. `damaged`: see `run.Footage`;
    `memory`: what the cameras remember; `undisturbed`: the same footage without faults."""
    everything = (*committed.verdicts.items(), *committed.alerts.items())
    twice = [f"{key}: {len(each)} times" for key, each in everything if len(each) > 1]
    doubled = sum(len(each) - 1 for _, each in everything)
    wrong = [f"{_name([finding.verdict])}: {finding.reason}" for finding in tally.unverified]
    wrong += [
        f"{_name(each)}: no answer"
        for each in committed.verdicts.values()
        if each[0].outcome != Verdict.OUTCOME_ANSWERED and each[0].camera not in damaged
    ]
    checked = tally.counts[Kind.VERIFIED.value]
    refused = sum(
        len(each)
        for each in committed.verdicts.values()
        if each[0].outcome != Verdict.OUTCOME_ANSWERED and each[0].camera in damaged
    )
    missing = sum(map(len, committed.verdicts.values())) - checked - refused
    silent = [
        f"{_name(each)}: {share:.0%} of its samples are damaged, {each[0].damaged:.0%} are said to be"
        for each in committed.verdicts.values()
        if each[0].outcome == Verdict.OUTCOME_ANSWERED
        and (share := damage(each[0], damaged.get(each[0].camera, set()))) > MAX_DAMAGE
    ]
    different = [*compare_masks(undisturbed, committed), *compare_answers(undisturbed, committed)]
    lines = [*twice, *wrong, *silent, *different, *memory.faults]
    faults = (doubled, missing, len(silent), len(different), len(memory.faults))
    return Score(expected, committed.outcomes, *faults), lines


def damage(verdict: Verdict, damaged: set[int]) -> float:
    """The share of a window's samples that arrived damaged or not at all, by the frames that did."""
    begin, end = (
        round((stamp.ToMilliseconds() - WALL_MS) * SAMPLES_S / 1000) for stamp in (verdict.start, verdict.end)
    )
    frames = [sample * FPS // SAMPLES_S for sample in range(begin, end)]
    return sum(frame in damaged for frame in frames) / max(1, len(frames))


def read(bootstrap: str) -> Committed:
    """Read the topics to their ends, committed records only."""
    verdicts: dict[str, list[Verdict]] = {}
    for value in _values(bootstrap, VERDICTS.name):
        verdict = from_json(value, Verdict)
        verdicts.setdefault(verdict.id, []).append(verdict)
    alerts: dict[str, list[Alert]] = {}
    for value in _values(bootstrap, ALERTS.name):
        alert = from_json(value, Alert)
        alerts.setdefault(alert.id, []).append(alert)
    masks = {}
    for value in _values(bootstrap, TOKENS.name):
        record = TokensRecord.FromString(value)
        if record.HasField("block"):
            key = record.camera, record.epoch, record.block.index
            masks[key] = tuple(patch.SerializeToString(deterministic=True) for patch in record.block.patches)
    return Committed(verdicts, alerts, masks)


def compare_masks(one: Committed, other: Committed) -> list[str]:
    """A line for each stride block whose keep masks are not equal to the byte in two runs."""
    before, after = _masks_by_place(one), _masks_by_place(other)
    return [
        f"{camera} epoch {epoch} block {block}: other tokens are kept than in the undisturbed run"
        for camera, epoch, block in sorted({*before, *after})
        if before.get((camera, epoch, block)) != after.get((camera, epoch, block))
    ]


def _masks_by_place(committed: Committed) -> dict[tuple[str, int, int], tuple[bytes, ...]]:
    order = _epoch_order((camera, epoch) for camera, epoch, _ in committed.masks)
    return {
        (camera, order[camera, epoch], block): masks
        for (camera, epoch, block), masks in committed.masks.items()
    }


def compare_answers(one: Committed, other: Committed) -> list[str]:
    """A line for each answer with another p(yes) than in the other run.

    After a restart a chain of windows begins again, and windows that continue it differ by what they reuse:
    within `REUSED`. Windows that are computed whole in both runs are the same.
    """
    before, after = by_place(one), by_place(other)
    lines = []
    for place in sorted({*before} & {*after}):
        first, second = before[place][0], after[place][0]
        if not first.outcome == second.outcome == Verdict.OUTCOME_ANSWERED:
            continue
        limit = SAME if first.basis == second.basis == "key" else REUSED
        if abs(first.p_yes - second.p_yes) > limit:
            lines.append(f"{_name([first])} {first.basis} became {_name([second])} {second.basis}")
    return lines


def compare(one: Committed, other: Committed) -> list[str]:
    """A line for each difference between two undisturbed runs."""
    differences = []
    first, second = by_place(one), by_place(other)
    for key in {*first, *second}:
        before, after = first.get(key), second.get(key)
        if before is None or after is None or not _same(before[0], after[0]):
            differences.append(f"{_name(before)} became {_name(after)}")
    raised, again = _alerts_by_place(one), _alerts_by_place(other)
    differences += [
        f"alerts of {place}: {raised[place]} in one run, {again[place]} in the other"
        for place in sorted({*raised, *again})
        if raised[place] != again[place]
    ]
    return differences


def by_place(committed: Committed) -> dict[Place, list[Verdict]]:
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


def bases(committed: Committed) -> dict[str, int]:
    """Answers by how they were computed."""
    return dict(Counter(each[0].basis for each in committed.verdicts.values()))


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
