"""Every committed verdict in scope, read from Kafka and computed again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from lookout.engines import Engine, Question, load_engine
from lookout.models.digest import folder_digest
from lookout.services.prefill.chain import plan_digest
from lookout.services.prefill.settings import PrefillSettings
from lookout.store import LineageBrokenError
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.verification.replay import Finding, Kind, Replayer
from lookout.verification.spread import rerun_spread
from lookout.verification.tokens import TokensFromKafka
from lookout.windows import Planner, StrideBlock
from lookout.wire import TOKENS, VERDICTS, from_bytes, from_json
from lookout.worker import load_settings
from lookout.worker.topic_reader import BEGINNING, End, TopicReader

__all__ = ["Scope", "Tally", "verify"]

_READ_S = 60.0
#: covers float32 in other batches
FLOAT32 = 1e-4
_SPREAD_CHAINS, _SPREAD_QUESTIONS = 2, 8
#: how far clocks of cameras may be ahead of Kafka's before the topics are read whole
_SLACK_S = 600.0
Epoch = tuple[str, int]
Verdicts = dict[Epoch, dict[int, list[Verdict]]]
Records = dict[Epoch, dict[int, TokensRecord]]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which verdicts: cameras that match a glob, windows that end at `since_ms` (Unix) or later."""

    camera: str = "*"
    since_ms: int = 0

    def has(self, verdict: Verdict) -> bool:
        """Whether the verdict is one of them."""
        return fnmatchcase(verdict.camera, self.camera) and verdict.end.ToMilliseconds() >= self.since_ms


@dataclass(slots=True)
class Tally:
    """How many verdicts became what, and those that differ."""

    counts: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    tolerance: float = 0.0
    unverified: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count one."""
        self.counts[finding.kind.value] += 1
        if finding.p_yes is not None:
            self.largest = max(self.largest, abs(finding.p_yes - finding.verdict.p_yes))
        if finding.kind is Kind.UNVERIFIED:
            self.unverified.append(finding)

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        return {
            **{kind.value: self.counts[kind.value] for kind in Kind},
            "largest_difference": self.largest,
            "tolerance": self.tolerance,
        }


def verify(
    model: Path,
    bootstrap: str,
    scope: Scope | None = None,
    *,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Tally:
    """Compute the verdicts in scope again and compare p(yes).

    Args:
        model: Folder of the fleet's model.
        bootstrap: Kafka.
        scope: Which verdicts; None: all.
        common: Settings of the fleet that are not the defaults.
        own: Settings of one service, by its name.
        tolerance: Largest difference of a verified verdict. None: 1e-4 for models in float32; otherwise what
            `rerun_spread` measures on the first chains, twice, since the fleet's run and this one may both be
            so far from the exact answer.
        progress: Called with the verdicts done and their number.
    """
    scope = scope or Scope()
    given = {"bootstrap": bootstrap, **(common or {})}
    theirs = {name: dict(values) for name, values in (own or {}).items()}
    settings = load_settings(
        PrefillSettings,
        {},
        **{"mode": "local", "model_dir": model, **given, **theirs.get("prefill", {})},
    )
    digest = folder_digest(model)
    engine = load_engine(model, settings.device, settings.dtype, budget_bytes=settings.kv_bytes)
    planner = Planner(engine.layout, settings.windows)
    tally = Tally()
    with TokensFromKafka(model, digest, given, theirs) as tokens:
        verdicts, records = _read(settings, scope)
        if tolerance is None:
            tolerance = FLOAT32
            if settings.dtype != "float32":
                tolerance = max(FLOAT32, 2 * _spread(engine, planner, tokens.load, verdicts, records))
        tally.tolerance = tolerance
        total = sum(len(group) for windows in verdicts.values() for group in windows.values())
        replayer = Replayer(
            planner,
            engine,
            tokens.load,
            model_digest=digest,
            plan_digest=plan_digest(planner, settings.reuse),
            tolerance=tolerance,
        )
        done = 0
        for epoch in sorted(verdicts):
            for finding in replayer.replay(records.get(epoch, {}), verdicts[epoch]):
                if scope.has(finding.verdict):
                    tally.add(finding)
                done += 1
                progress(done, total)
    engine.close()
    return tally


def _spread(
    engine: Engine,
    planner: Planner,
    load: Callable[[TokensRecord], StrideBlock],
    verdicts: Mapping[Epoch, Mapping[int, Sequence[Verdict]]],
    records: Mapping[Epoch, Mapping[int, TokensRecord]],
) -> float:
    """`rerun_spread` on the longest runs of blocks, with questions that the fleet answered."""
    longest = planner.settings.key_every + planner.settings.blocks - 1
    texts = {each.question for windows in verdicts.values() for group in windows.values() for each in group}
    chains: list[list[StrideBlock]] = []
    for epoch in sorted(records, key=lambda each: -len(records[each]))[:_SPREAD_CHAINS]:
        blocks: list[StrideBlock] = []
        for index in sorted(records[epoch])[:longest]:
            if blocks and blocks[-1].index != index - 1:
                break
            try:
                blocks.append(load(records[epoch][index]))
            except LineageBrokenError:
                blocks.clear()
        if any(block.frames for block in blocks):
            chains.append(blocks)
    questions = [Question(text, text) for text in sorted(texts)[:_SPREAD_QUESTIONS]]
    return rerun_spread(engine, planner, chains, questions)


def _read(settings: PrefillSettings, scope: Scope) -> tuple[Verdicts, Records]:
    """The verdicts of the epochs in scope and their blocks.

    Read from the time of the scope, less what a chain of windows may reach back. Where
    something is missing then (a camera's clock is ahead, or chains are longer than these
    settings say), both topics are read whole.
    """
    chain_s = (settings.key_every + settings.window_blocks) * settings.stride_s + (settings.idle_age_s or 0.0)
    start_ms = max(0, scope.since_ms - round(1000 * (chain_s + _SLACK_S)))
    verdicts, records = _verdicts(settings, scope, start_ms), _records(settings, scope, start_ms)
    if start_ms and not all(
        _is_complete(windows, records.get(epoch, {}), scope, settings.window_blocks)
        for epoch, windows in verdicts.items()
    ):
        return _verdicts(settings, scope, 0), _records(settings, scope, 0)
    return verdicts, records


def _is_complete(
    windows: Mapping[int, Sequence[Verdict]], records: Mapping[int, TokensRecord], scope: Scope, blocks: int
) -> bool:
    """Whether the chains of the verdicts in scope were read from their beginnings, with all of the `blocks`
    blocks of a window.
    """
    answered = [
        each for group in windows.values() for each in group if each.outcome == Verdict.OUTCOME_ANSWERED
    ]
    first: dict[str, int] = {}  # the first computed window of each watch
    for each in answered:
        if each.basis != "idle":
            first[each.watch] = min(each.window, first.get(each.watch, each.window))
    return all(
        first.get(each.watch, each.window) < each.window
        if each.basis == "idle"
        else {max(0, each.window - each.since_key - blocks + 1), each.window} <= records.keys()
        for each in answered
        if scope.has(each)
    )


def _verdicts(settings: PrefillSettings, scope: Scope, start_ms: int) -> Verdicts:
    """Verdicts of the cameras in scope by epoch and window; earlier ones too, since chains start there."""
    found: Verdicts = defaultdict(lambda: defaultdict(list))
    for message in _messages(settings, VERDICTS.name, start_ms):
        verdict = from_json(message.value() or b"", Verdict)
        if fnmatchcase(verdict.camera, scope.camera):
            found[verdict.camera, verdict.epoch][verdict.window].append(verdict)
    return {
        epoch: windows
        for epoch, windows in found.items()
        if any(map(scope.has, chain.from_iterable(windows.values())))
    }


def _records(settings: PrefillSettings, scope: Scope, start_ms: int) -> Records:
    found: Records = defaultdict(dict)
    for message in _messages(settings, TOKENS.name, start_ms):
        record = from_bytes(message.value() or b"", TokensRecord)
        if record.HasField("block") and fnmatchcase(record.camera, scope.camera):
            found[record.camera, record.epoch].setdefault(record.block.index, record)
    return found


def _messages(settings: PrefillSettings, topic: str, start_ms: int) -> Iterator[Message]:
    """The committed records of a topic from a time (Unix milliseconds; 0: all) up to its end now."""
    reader = TopicReader(settings, "verify", options={"auto.offset.reset": "earliest"})
    try:
        partitions = reader.partitions(topic, _READ_S)
        starts = reader.at(topic, partitions, start_ms, _READ_S) if start_ms else {}
        reader.read_from(topic, {each: starts.get(each, BEGINNING) for each in partitions})
        waiting = set(partitions)
        while waiting:
            message = reader.next(_READ_S)
            if message is None:
                raise TimeoutError(f"{topic} cannot be read to its end")
            if isinstance(message, End):
                waiting.discard(message.partition)
            else:
                yield message
    finally:
        reader.close()
