"""One table of clips: Pipeline, evaluation, the fleet's handlers and the verification of their verdicts see
the same windows and answer alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest

from lookout.models import window_defaults
from lookout.models.engines import Question, load_engine
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.windows import Planner
from lookout.past.verification import Kind, Replayer
from lookout.streams.chains import EpochRecords, load_block, plan_digest
from lookout.streams.pipeline import Pipeline
from lookout.v1.lineage_pb2 import CAUSE_OTHER_MODEL
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch
from lookout.video.segments import cut
from lookout.wire.headers import CAPTURED_AT, encode
from tests.one_process_fleet import OneProcessFleet
from tests.streams import clip, segments
from tests.tiny_models import checkpoint
from watchbench.evaluation.clip_windows import answer_streams, encode_clip

QUESTION = "Is anyone lying?"
SAMPLING = {"fps": 2.0, "stride_s": 2.0, "window_s": 6.0}
PACKET = 188

#: windows of each stream, in the order of the streams: (index of the newest block, p(yes))
Windows = list[list[tuple[int, float]]]


@cache
def pieces() -> list[bytes]:
    return segments(16.0)


def damaged(data: bytes) -> bytes:
    """The clip without six packets, a part of a keyframe among them, as a lossy network leaves it."""
    packets = [data[start : start + PACKET] for start in range(0, len(data), PACKET)]
    lost = len(packets) // 2 + 5
    return b"".join(packets[: lost - 3] + packets[lost + 3 :])


#: encoded by the test that reads one
CLIPS: Mapping[str, Callable[[], bytes]] = {
    "plain": lambda: b"".join(pieces()),
    "a hole": lambda: b"".join(pieces()[:3] + pieces()[4:]),
    "a hole as long as a window": lambda: b"".join(pieces()[:2] + pieces()[5:]),
    "a clock jump": lambda: b"".join(pieces()[:3]) + clip(8.0, seed=1),
    "a clock jump forward": lambda: b"".join(pieces()[:2]) + clip(8.0, start_s=52.0),
    "short clips": lambda: b"".join(clip(4.0, seed=seed) for seed in (0, 1)),
    "out of order": lambda: b"".join([*pieces()[:2], pieces()[3], pieces()[2], *pieces()[4:]]),
    "a lost stream": lambda: b"".join(pieces()[:4]) + pieces()[4][: len(pieces()[4]) // 2],
    "damaged": lambda: damaged(clip(16.0)),
    "shorter than a stride": lambda: segments(1.5)[0],
}


@cache
def of_fleet(data: bytes) -> Windows:
    """Windows of the fleet, each of which verification computes again from the fleet's records."""
    with closing(_fleet()) as fleet:
        begun_ms = fleet.now_ms
        for piece in cut(BytesIO(data)):
            captured = {CAPTURED_AT: str(begun_ms + piece.start_us // 1000)}  # as `lookout publish` does
            fleet.send(piece.data, headers=encode(captured))
        fleet.end()
        epochs = _epochs(fleet)
        check_verified(fleet, epochs)
    return [_answered_windows(epoch) for epoch in epochs]


def _fleet() -> OneProcessFleet:
    return OneProcessFleet(checkpoint("internvl"), Watch(id="fall", version=1, question=QUESTION), **SAMPLING)


def _answered_windows(epoch: EpochRecords) -> list[tuple[int, float]]:
    """Window and p(yes) of the answers; an epoch without one has its place, too."""
    verdicts = [verdict for window in sorted(epoch.verdicts) for verdict in epoch.verdicts[window]]
    return [
        (verdict.window, verdict.p_yes) for verdict in verdicts if verdict.outcome == Verdict.OUTCOME_ANSWERED
    ]


def _epochs(fleet: OneProcessFleet) -> list[EpochRecords]:
    """What Kafka has of every epoch of the camera."""
    epochs: dict[int, EpochRecords] = {}
    for record in fleet.tokens:
        epoch = epochs.setdefault(record.epoch, EpochRecords(record.camera, record.epoch))
        if record.HasField("block"):
            epoch.blocks[record.block.index] = record
    for verdict in fleet.verdicts:
        epochs[verdict.epoch].verdicts[verdict.window].append(verdict)
    return [epochs[number] for number in sorted(epochs)]


def check_verified(fleet: OneProcessFleet, epochs: Sequence[EpochRecords]) -> None:
    """Every answer is computed again, on an engine that has none of the fleet's KV."""
    engine = load_engine(fleet.model)
    with closing(engine):
        planner = Planner(engine.layout, fleet.settings.windows)
        replayer = Replayer(
            planner,
            engine,
            lambda record: load_block(record, fleet.client, fleet.settings.step_us).block,
            model_digest=fleet.digest,
            plan_digest=plan_digest(planner, reuse=fleet.settings.reuse),
            tolerance=1e-5,
        )
        for epoch in epochs:
            for finding in replayer.replay(epoch):
                answered = finding.verdict.outcome == Verdict.OUTCOME_ANSWERED
                assert finding.kind is (Kind.VERIFIED if answered else Kind.UNANSWERED), finding


def of_pipeline(data: bytes) -> Windows:
    streams: dict[str, list[tuple[int, float]]] = defaultdict(list)
    verdicts: list[float] = []
    with Pipeline(checkpoint("internvl"), [QUESTION], **SAMPLING) as pipeline:
        with pipeline._session("cam") as session:
            pieces = ((piece.data, piece.start_us / 1e6) for piece in cut(BytesIO(data)))
            closed = [window for piece, start_s in pieces for window in session.push(piece, start_s)]
            closed += session.flush()
        verdicts = [verdict.p_yes for verdict in pipeline.watch(BytesIO(data))]
    for window in closed:
        newest = window.played.blocks[-1]
        streams[newest.stream] += [(newest.index, answer.p_yes or 0.0) for answer in window.answers]
    assert [p for stream in streams.values() for _, p in stream] == verdicts
    return list(streams.values())


def of_evaluation(data: bytes, folder: Path) -> Windows:
    path = folder / "clip.ts"
    path.write_bytes(data)
    model, preset = checkpoint("internvl"), preset_of(DEFAULT)
    sampling = window_defaults(model).changed(**SAMPLING)
    tower, engine = load_tower(model), load_engine(model)
    (streams,) = encode_clip(path, tower, [preset.masks], sampling)
    windows = preset.windows.sampled(sampling)
    answered = [answer_streams(engine, windows, [stream], [Question("fall", QUESTION)]) for stream in streams]
    engine.close()
    return [
        [(window.plan.window, window.answer.answers[0].p_yes) for window in windows] for windows in answered
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("a clock jump", "damaged") else pytest.param(name, marks=pytest.mark.long)
        for name in CLIPS
    ],
)
def test_a_clip_has_the_windows_of_the_fleet(name: str, tmp_path: Path) -> None:
    data = CLIPS[name]()
    fleet = of_fleet(data)
    assert sum(map(len, fleet)) > 0
    for other in (of_pipeline(data), of_evaluation(data, tmp_path)):
        assert [[index for index, _ in stream] for stream in other] == [
            [index for index, _ in stream] for stream in fleet
        ]
        p_yes = [p for stream in fleet for _, p in stream]
        assert [p for stream in other for _, p in stream] == pytest.approx(p_yes, abs=1e-5)


@pytest.mark.long
def test_the_table_has_what_it_says() -> None:
    """Otherwise its rows would test the plain clip again."""
    windows = {
        name: [[index for index, _ in stream] for stream in of_fleet(clip())] for name, clip in CLIPS.items()
    }
    assert windows["plain"] == [[*range(8)]]
    assert windows["a hole"] == [[0, 1, 2, 4, 5, 6, 7]]
    assert windows["a hole as long as a window"] == [[0, 1, 5, 6, 7]]
    assert windows["a clock jump"] == [[0, 1, 2], [0, 1, 2, 3]]
    assert len(windows["a clock jump forward"]) == 2
    assert windows["short clips"] == [[0, 1], [0, 1]]
    assert windows["out of order"] == [[0, 1, 3], [0, 2, 3, 4, 5]]
    assert windows["a lost stream"] == [[0, 1, 2, 3]]
    assert windows["damaged"] == [[0, 1, 2, 3, 7]]
    assert windows["shorter than a stride"] == [[0]]


def test_blocks_of_another_model_are_a_hole() -> None:
    """As while a model is rolled out: their windows name the cause, and no later window sees them."""
    foreign = 3
    with closing(_fleet()) as fleet:
        for number, piece in enumerate(pieces()):
            fleet.name_model("another" if number == foreign else fleet.digest)
            fleet.send(piece)
        fleet.end()
        (epoch,) = _epochs(fleet)
        check_verified(fleet, [epoch])
    (refused,) = [
        verdict
        for window in epoch.verdicts.values()
        for verdict in window
        if verdict.outcome == Verdict.OUTCOME_DEGRADED
    ]
    assert (refused.window, refused.cause) == (foreign, CAUSE_OTHER_MODEL)
    (hole,) = of_fleet(CLIPS["a hole"]())
    answers = _answered_windows(epoch)
    assert [window for window, _ in answers] == [window for window, _ in hole]
    assert [p_yes for _, p_yes in answers] == pytest.approx([p_yes for _, p_yes in hole], abs=1e-5)
