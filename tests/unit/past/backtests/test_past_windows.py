"""A back-test of a watch over what it saw says what was committed, of another what it would have said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import BytesIO

import av
import numpy as np
import pytest

from lookout.models.engines import load_engine
from lookout.models.windows import Planner
from lookout.past.backtests import Backtest, PastWindows
from lookout.rules import messages
from lookout.streams.chains import EpochRecords, PastScope, load_block
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Gate, Point, Rule, Watch, Zone
from lookout.video.segments import cut
from tests.one_process_fleet import OneProcessFleet
from tests.streams import SIDE, clip, picture
from tests.tiny_models import checkpoint
from tests.unit.streams.test_callers import CLIPS

SAMPLING = {"fps": 2.0, "stride_s": 2.0, "window_s": 6.0}
LEFT = Zone(points=[Point(x=0, y=0), Point(x=0.6, y=0), Point(x=0.6, y=1), Point(x=0, y=1)])
FALL = Watch(
    id="fall",
    version=1,
    question="Is anyone lying?",
    rule=Rule(threshold=0.0111, clear_threshold=0.011, k=2, n=3, zones=[LEFT]),
)
CROWD = Watch(id="crowd", version=1, question="Are there many people?", rule=Rule(threshold=0.02))


#: structured questions: an incident opens once the condition held for four seconds
COUNT = Watch(
    id="count",
    version=1,
    question="How many people are in view? [0..5] when count >= 3 for 4 s",
    rule=Rule(threshold=0.15),
)
CLASS = Watch(
    id="class",
    version=1,
    question="Is the gate open, ajar or closed? [open, ajar, closed] when class in {open, ajar}",
    rule=Rule(threshold=0.15),
)


@cache
def still() -> bytes:
    """Twelve seconds of movement, then twelve of one picture."""
    buffer = BytesIO()
    noise = np.random.default_rng(0)
    with av.open(buffer, "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.options = {"g": "20", "bf": "0", "sc_threshold": "0"}
        shown = picture(0, noise)
        for number in range(240):
            shown = picture(number / 10, noise) if number < 120 else shown
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


#: the random model sees some differences; the threshold lies between them
STREAMS: Mapping[str, tuple[Callable[[], bytes], Mapping[str, object]]] = {
    "a clock jump": (CLIPS["a clock jump"], {}),
    "damaged": (CLIPS["damaged"], {}),
    "key windows": (lambda: clip(24.0), {"key_every": 3}),
    "idle": (still, {"idle_age_s": 60.0}),
}
LEAST = ("key windows", "idle")


def run(
    encoded: Callable[[], bytes], watches: Sequence[Watch], values: Mapping[str, object]
) -> OneProcessFleet:
    fleet = OneProcessFleet(checkpoint("internvl"), *watches, prefill=values, **SAMPLING)
    for piece in cut(BytesIO(encoded())):
        fleet.send(piece.data)
    fleet.end()
    return fleet


def epochs(fleet: OneProcessFleet) -> list[EpochRecords]:
    """What is in the topics, as `read_epochs` gives it."""
    records: dict[int, EpochRecords] = {}
    for token in fleet.tokens:
        if token.HasField("block"):
            epoch = records.setdefault(token.epoch, EpochRecords("cam", token.epoch))
            epoch.blocks[token.block.index] = token
    for verdict in fleet.verdicts:
        records[verdict.epoch].verdicts[verdict.window].append(verdict)
    return [records[number] for number in sorted(records)]


def replayed(
    fleet: OneProcessFleet, watch: Watch, scope: PastScope | None = None
) -> tuple[list[Verdict], Backtest]:
    engine = load_engine(checkpoint("internvl"))
    planner = Planner(engine.layout, fleet.settings.windows)
    windows = PastWindows(
        fleet.settings,
        engine,
        planner,
        lambda record: load_block(record, fleet.client, fleet.settings.step_us).block,
        fleet.digest,
    )
    verdicts, backtest = [], Backtest(messages.rule_of(watch.rule, watch.question), timeline={})
    for epoch in epochs(fleet):
        for past in windows.verdicts(epoch, watch, scope or PastScope()):
            assert not past.expired
            verdicts.append(past.verdict)
            past.add_cost(backtest.cost)
            backtest.take(past.verdict, expired=past.expired)
    engine.close()
    return verdicts, backtest


def incidents(fleet: OneProcessFleet, watch: Watch) -> list[tuple[int, int, str]]:
    """Those of the committed verdicts."""
    backtest = Backtest(messages.rule_of(watch.rule, watch.question))
    for verdict in fleet.verdicts:
        if verdict.watch == watch.id:
            backtest.add(messages.verdict_of(verdict, backtest.rule))
    return facts(backtest)


def facts(backtest: Backtest) -> list[tuple[int, int, str]]:
    return [(past.opened_ms, past.end_ms, past.reason) for past in backtest.incidents]


def compare(past: Sequence[Verdict], committed: Sequence[Verdict]) -> None:
    assert [(v.epoch, v.window, v.outcome) for v in past] == [
        (v.epoch, v.window, v.outcome) for v in committed
    ]
    assert [v.p_yes for v in past] == pytest.approx([v.p_yes for v in committed], abs=1e-4)
    for one, other in zip(past, committed, strict=True):
        assert (one.start, one.end, one.activity) == (other.start, other.end, other.activity)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in LEAST else pytest.mark.long) for n in STREAMS]
)
def test_an_enabled_watch_says_what_was_committed(name: str) -> None:
    encoded, values = STREAMS[name]
    fleet = run(encoded, [FALL], values)
    past, backtest = replayed(fleet, FALL)
    compare(past, fleet.verdicts)
    assert facts(backtest) == incidents(fleet, FALL)
    bases = {verdict.basis for verdict in fleet.verdicts}
    assert ("idle" in bases) == (name == "idle")
    assert "incremental" in bases
    assert backtest.incidents or name != "key windows"
    fleet.close()


@pytest.mark.long
def test_another_question_says_what_it_would_have_said() -> None:
    encoded, values = STREAMS["key windows"]
    both = run(encoded, [FALL, CROWD], values)
    expected = [verdict for verdict in both.verdicts if verdict.watch == "crowd"]
    for watches in ([FALL], []):
        fleet = run(encoded, watches, values)
        past, backtest = replayed(fleet, CROWD)
        if watches:
            compare(past, expected)
        else:  # nothing was watched: the outcome of the gap is not in the topics
            compare(past, [verdict for verdict in expected if verdict.outcome == Verdict.OUTCOME_ANSWERED])
        assert backtest.dense_share < 1
        fleet.close()
    both.close()


@pytest.mark.slow
def test_watches_of_strides_and_of_windows_say_what_they_said_together() -> None:
    encoded, values = STREAMS["key windows"]
    strides = Watch(id="crowd", version=1, question=CROWD.question, asked=Watch.ASKED_STRIDES)
    fleet = run(encoded, [strides, FALL], values)
    committed = {name: [v for v in fleet.verdicts if v.watch == name] for name in ("crowd", "fall")}
    assert {v.basis for v in committed["crowd"]} >= {"strides"}
    for watch in (strides, FALL):
        past, _ = replayed(fleet, watch)
        compare(past, committed[watch.id])
        assert [v.basis for v in past] == [v.basis for v in committed[watch.id]]
    # A question that was asked about strides is now asked about windows. Its chains are those of the watch
    # that asked about windows or, if there was none, those of the stream's key strides.
    asked_else = Watch(id="crowd", version=1, question=CROWD.question)
    expected = run(encoded, [asked_else], values)
    for watches in (fleet, run(encoded, [strides], values)):
        compare(replayed(watches, asked_else)[0], expected.verdicts)
        if watches is not fleet:
            watches.close()
    expected.close()
    fleet.close()


@pytest.mark.long
def test_structured_questions_raise_the_incidents_that_they_raised_live() -> None:
    encoded, values = STREAMS["key windows"]
    fleet = run(encoded, [FALL, COUNT, CLASS], values)
    for watch, answers in ((COUNT, "012345"), (CLASS, ("open", "ajar", "closed"))):
        committed = [verdict for verdict in fleet.verdicts if verdict.watch == watch.id]
        past, backtest = replayed(fleet, watch)
        compare(past, committed)
        for one, other in zip(past, committed, strict=True):
            assert [share.answer for share in one.answers] == list(answers if one.HasField("p_yes") else ())
            assert [share.p for share in one.answers] == pytest.approx(
                [share.p for share in other.answers], abs=1e-4
            )

        assert backtest.incidents
        assert facts(backtest) == incidents(fleet, watch)
    fleet.close()


@pytest.mark.slow
def test_a_part_of_the_past_has_the_answers_of_the_whole() -> None:
    encoded, values = STREAMS["key windows"]
    fleet = run(encoded, [FALL], values)
    later = [verdict for verdict in fleet.verdicts if 7 <= verdict.window < 10]
    scope = PastScope("c*", later[0].end.ToMilliseconds(), later[-1].end.ToMilliseconds() + 1)
    past, _ = replayed(fleet, FALL, scope)
    compare(past, later)
    assert replayed(fleet, FALL, PastScope("yard"))[0] == []
    fleet.close()


GATES = [
    *(pytest.param(gate, marks=pytest.mark.long) for gate in (Gate(motion=True), Gate(watch="crowd"))),
    Gate(watch="crowd", motion=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES)
def test_a_gate_leaves_out_what_it_left_out_live(gate: Gate) -> None:
    gated = Watch()
    gated.CopyFrom(FALL)
    gated.rule.threshold = gated.rule.clear_threshold = 0.99
    gated.gate.CopyFrom(gate)
    for values in ({"idle_age_s": 60.0}, {}):
        fleet = run(still, [CROWD, gated], values)
        committed = [verdict for verdict in fleet.verdicts if verdict.watch == gated.id]
        past, _ = replayed(fleet, gated)
        compare(past, committed)
        outcomes = {verdict.outcome for verdict in committed}
        assert {Verdict.OUTCOME_ANSWERED, Verdict.OUTCOME_GATED} <= outcomes
        fleet.close()
