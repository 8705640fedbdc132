"""Recordings as jobs answer what `lookout.analyze` answers about the same file, whatever happens to them."""

from __future__ import annotations

import dataclasses
import functools
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import numpy as np
import pytest

from lookout.errors import TransientError
from lookout.recordings.analysis import Analysis, Analyzer, analyze
from lookout.recordings.jobs import analysis_of, settings_of
from lookout.v1.recordings_pb2 import (
    RecordingAnswers,
    RecordingJob,
    RecordingOutcome,
    RecordingPart,
    RecordingSettings,
)
from lookout.wire import ANSWERS, RECORDING_PARTS, RECORDING_RESULTS, RECORDINGS, from_bytes, to_json
from tests.eventually import eventually
from tests.range_server import RangeServer
from tests.unit.services.recordings_case import PARTITIONS, Services
from tests.unit.video.files.test_begin import APPLE, tagged
from tests.unit.video.segments.clips import encode

QUESTIONS = ["Is anyone there?", "Is it dark?"]
SETTINGS = RecordingSettings(fps=5, part_frames=8, group_frames=3)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "clip.mp4"
    path.write_bytes(encode("mp4", frames=60, speed=1))  # six seconds: four parts
    return path


@pytest.fixture
def services(analyzer: Analyzer, clip: Path) -> Iterator[Services]:
    services = Services(analyzer, clip.parent)
    yield services
    services.parts_handler.close()


def job(*uris: str | Path, identity: str = "job-1", **fields: object) -> RecordingJob:
    names = [uri.as_uri() if isinstance(uri, Path) else uri for uri in uris]
    return RecordingJob(id=identity, uris=names, **{"questions": QUESTIONS, "settings": SETTINGS, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(analyzer: Analyzer, clip: Path) -> Analysis:
    """What `lookout.analyze` answers about the clip."""
    return expected(analyzer, clip)


def expected(analyzer: Analyzer, path: Path, how: RecordingSettings = SETTINGS) -> Analysis:
    return analyze(str(path), QUESTIONS, analyzer=analyzer, settings=settings_of(how, 1), sandbox=True)


def compared(analysis: Analysis) -> dict[str, object]:
    """Everything but where the file is, and what a run takes."""
    facts = dataclasses.asdict(analysis)
    for name in ("source", "timings", "work", "wall_s", "run_s"):
        del facts[name]
    return facts


def write_noise(path: Path) -> None:
    """Half a minute of large pictures that share nothing; FFmpeg reads five seconds when it opens a file."""
    draw = np.random.default_rng(1)
    with av.open(path, "w") as out:
        stream = out.add_stream("libx264", rate=2, options={"preset": "ultrafast", "bf": "0"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.gop_size = 160, 120, 10
        for _ in range(60):
            pixels = draw.integers(0, 256, (120, 160, 3), np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())


def outcomes(services: Services) -> list[RecordingOutcome]:
    records = services.topics.records[RECORDING_RESULTS.name]
    return [from_bytes(record.value, RecordingOutcome) for record in records]


@contextmanager
def server_without_ranges(folder: Path) -> Iterator[int]:
    """The port of a server that sends whole files."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_a_job_answers_what_analyze_answers(services: Services, clip: Path, whole: Analysis) -> None:
    services.ask(job(clip))
    parts = services.topics.records[RECORDING_PARTS.name]
    assert {record.partition for record in parts} == set(range(PARTITIONS))
    random.Random(1).shuffle(parts)
    services.work()
    answers = services.answers("job-1")
    assert (answers.state, answers.done, answers.parts) == (RecordingAnswers.STATE_DONE, 4, 4)
    (recording,) = answers.recordings
    assert compared(analysis_of(recording)) == compared(whole)
    progress = [record.camera for record in services.topics.records[ANSWERS.name]]
    assert progress == ["job-1"] * 5  # the plan, and every part


@pytest.mark.long
def test_a_job_says_when_its_recording_begins(services: Services, analyzer: Analyzer, clip: Path) -> None:
    path = clip.with_name("phone.mov")
    path.write_bytes(tagged({APPLE: "2024-05-01T13:30:00+0200"}, "mov"))
    given = RecordingSettings()
    given.CopyFrom(SETTINGS)
    given.begins.FromJsonString("2026-05-01T13:30:00-01:00")
    try:
        services.ask(job(path, identity="stated"))
        services.ask(job(path, identity="told", settings=given))
        several = path.parent / "several"
        several.mkdir()
        for name in "abc":
            (several / f"{name}.mp4").write_bytes(b"never opened")
        services.ask(job(several, identity="folder", settings=given))
        services.work()
        (stated,), (told,) = (services.answers(name).recordings for name in ("stated", "told"))
        assert compared(analysis_of(stated)) == compared(expected(analyzer, path))
    finally:
        path.unlink()
        shutil.rmtree(several)
    assert (analysis_of(stated).begins_from, analysis_of(told).begins_from) == ("file", "given")
    begins = [analysis_of(answer).to_dict()["begins"] for answer in (stated, told)]
    assert begins == ["2024-05-01T13:30:00.000+02:00", "2026-05-01T14:30:00.000+00:00"]
    folder = services.answers("folder")
    assert folder.state == RecordingAnswers.STATE_REFUSED
    assert "begins applies to one recording, but the job names 3" in folder.reason


@pytest.mark.slow
def test_a_recording_behind_a_url_is_answered_like_the_file(
    services: Services, clip: Path, whole: Analysis
) -> None:
    with server_without_ranges(clip.parent) as port:
        services.ask(job(f"http://films.example:{port}/clip.mp4"))
        services.work()
    (recording,) = services.answers("job-1").recordings
    assert compared(analysis_of(recording)) == compared(whole)


@pytest.mark.long
def test_a_full_disk_in_the_middle_of_a_job_loses_nothing(
    services: Services, clip: Path, whole: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host without ranges: every worker copies the file. The part is answered once there is room."""
    with server_without_ranges(clip.parent) as port:
        services.ask(job(f"http://films.example:{port}/clip.mp4"))
        first, second, *_ = services.topics.records[RECORDING_PARTS.name]
        services.parts.handle(first)
        services.parts_handler.close()  # the next worker has no copy
        with open("/dev/full", "wb", buffering=0) as full, monkeypatch.context() as disk:
            disk.setattr("lookout.recordings.jobs.sources.open", lambda *_, **__: full, raising=False)
            with pytest.raises(TransientError, match=r"cannot be stored in .* \(No space left on device\)"):
                services.parts.handle(second)
        services.parts.read = 1
        services.work()
    (recording,) = services.answers("job-1").recordings
    assert compared(analysis_of(recording)) == compared(whole)


@pytest.mark.long
def test_a_part_behind_a_url_costs_the_bytes_that_it_needs(
    services: Services, analyzer: Analyzer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if every part were another worker's: its index and its own bytes, not the whole file."""
    monkeypatch.setattr("lookout.video.files.ranged.RUN", 2)
    large = tmp_path / "large.mp4"
    write_noise(large)
    size, settings = large.stat().st_size, RecordingSettings(fps=2, part_frames=15, group_frames=8)
    with RangeServer(tmp_path) as server:
        services.ask(job(f"{server.address}/large.mp4", settings=settings))
        assert 0 < server.sent < 0.5 * size
        for part in services.topics.records[RECORDING_PARTS.name]:
            server.sent = 0
            services.parts.handle(part)
            services.parts_handler.close()
            assert 0 < server.sent < 0.7 * size
        services.reduce.catch_up(RECORDING_RESULTS.name)
    (recording,) = services.answers("job-1").recordings
    assert compared(analysis_of(recording)) == compared(expected(analyzer, large, settings))


@pytest.mark.slow
def test_the_second_outcome_of_a_part_counts_nothing(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    services.parts.catch_up(RECORDING_PARTS.name)
    first = services.topics.records[RECORDING_RESULTS.name][1]
    services.topics.add(first.topic, first.camera, first.value, first.partition)
    services.reduce.catch_up(RECORDING_RESULTS.name)
    assert services.answers("job-1").done == 4
    assert services.reduce.handle(first).counts == {"late": 1}


@pytest.mark.slow
def test_outcomes_that_cannot_be_read_again_are_tried_again(
    services: Services, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.ask(job(clip))
    services.parts.catch_up(RECORDING_PARTS.name)
    *before, last = services.topics.records[RECORDING_RESULTS.name]
    for record in before:
        services.reduce.handle(record)
    handler, stored = services.reduce.handler, services.reduce.checkpoints["job-1"]
    state = handler.load("job-1", stored)

    def away(*_: object) -> None:
        raise TransientError("Kafka is away")

    with monkeypatch.context() as broken:
        broken.setattr(services.topics, "read", away)
        with pytest.raises(TransientError):
            handler.handle(state, last)
    (output,) = handler.handle(state, last).outputs  # the worker keeps the state after a TransientError
    assert output.value is not None
    assert b'"state":"done"' in output.value


@pytest.mark.long
def test_a_folder_is_its_files_and_what_cannot_be_read_is_named(
    services: Services, clip: Path, tmp_path: Path
) -> None:
    broken = clip.parent / "broken.mp4"
    broken.write_bytes(b"no video")
    try:
        services.ask(job(clip.parent, clip.parent / "gone.mp4", "/etc/passwd", "gopher://host/a", "::"))
    finally:
        broken.unlink()
    services.work()
    answers = services.answers("job-1")
    assert answers.state == RecordingAnswers.STATE_DONE
    reasons = {recording.uri.rpartition("/")[2]: recording.reason for recording in answers.recordings}
    assert reasons["clip.mp4"] == ""
    assert reasons["broken.mp4"]
    assert "No such file" in reasons["gone.mp4"]
    assert "not in a folder that may be read" in reasons["passwd"]
    assert "'gopher' is not supported" in reasons["a"]
    assert "is not supported" in reasons["::"]


@pytest.mark.slow
def test_no_way_leads_out_of_the_folders(services: Services, clip: Path) -> None:
    outside = clip.parent.parent / "outside.mp4"
    outside.write_bytes(clip.read_bytes())
    link = clip.parent / "link.mp4"
    link.symlink_to(outside)
    names = ("link.mp4", "../outside.mp4", "%2e%2e/outside.mp4")
    try:
        services.ask(job(*(f"file://{clip.parent}/{name}" for name in names), clip.parent))
    finally:
        link.unlink()
    *refused, last = outcomes(services)[0].plan.recordings
    assert len(refused) == 3
    assert all("not in a folder that may be read" in recording.reason for recording in refused)
    assert (last.uri, last.reason) == (clip.as_uri(), "")  # the folder, without the link in it


@pytest.mark.slow
def test_a_recording_that_changes_or_goes_is_refused_by_name(
    services: Services, clip: Path, tmp_path: Path
) -> None:
    copy = clip.parent / "copy.mp4"
    copy.write_bytes(clip.read_bytes())
    services.ask(job(copy))
    parts = services.topics.records[RECORDING_PARTS.name]
    services.parts.handle(parts[0])
    copy.write_bytes(encode("mp4", frames=50, speed=1))
    services.parts.handle(parts[1])
    copy.unlink()
    services.parts.handle(parts[2])
    services.parts.handle(parts[3])
    services.reduce.catch_up(RECORDING_RESULTS.name)
    (recording,) = services.answers("job-1").recordings
    first, second, *gone = recording.parts
    assert first.answers
    assert "changed" in second.reason
    assert all("cannot be read (No such file or directory)" in part.reason for part in gone)
    assert next(gap.reason for gap in analysis_of(recording).gaps) == second.reason
    assert recording.answers[0].part == 0


@pytest.mark.slow
def test_a_cancelled_job_ends_with_what_was_answered(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    parts = services.topics.records[RECORDING_PARTS.name]
    services.parts.handle(parts[0])
    services.ask(job(clip, cancelled=True))
    services.ask(job(clip, cancelled=True))
    services.cancelled.add("job-1")
    for record in parts[1:]:
        services.parts.handle(record)
    services.reduce.catch_up(RECORDING_RESULTS.name)
    answers = services.answers("job-1")
    assert (answers.state, answers.done) == (RecordingAnswers.STATE_CANCELLED, 1)
    assert answers.recordings[0].answers[0].part == 0
    assert {outcome.part.reason for outcome in outcomes(services)[3:]} == {"cancelled"}


@pytest.mark.slow
def test_cancelling_ends_a_part_between_its_groups(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    calls = iter([False, False, True])
    handler = services.parts_handler
    handler._cancelled = lambda _: next(calls)  # the first look is before the part
    result = services.parts.handle(services.topics.records[RECORDING_PARTS.name][0])
    (output,) = result.outputs
    assert from_bytes(output.value or b"", RecordingOutcome).part.reason == "cancelled"
    assert next(calls, None) is None


@pytest.mark.slow
def test_a_job_whose_time_is_over_ends(services: Services, clip: Path) -> None:
    services.ask(job(clip, expires_s=60))
    parts = services.topics.records[RECORDING_PARTS.name]
    services.parts.handle(parts[0])
    services.now += 61
    services.parts.handle(parts[1])
    services.reduce.catch_up(RECORDING_RESULTS.name)
    assert services.reduce.tick("job-1", services.now) is not None
    assert services.reduce.tick("job-1", services.now) is None
    answers = services.answers("job-1")
    assert (answers.state, answers.done) == (RecordingAnswers.STATE_EXPIRED, 2)
    assert [part.reason for part in answers.recordings[0].parts] == ["", "expired"]


@pytest.mark.slow
def test_a_job_of_the_same_name_is_refused_and_a_repeated_request_counts_once(
    services: Services, clip: Path
) -> None:
    services.ask(job(clip))
    services.ask(job(clip))
    services.ask(job(clip, questions=["Is it raining?"]))
    assert [letter.reason for letter in services.plan.letters] == ["job-exists"]
    assert len(services.topics.records[RECORDING_PARTS.name]) == 4
    services.work()
    assert services.answers("job-1").state == RecordingAnswers.STATE_DONE


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong",
    [
        {"questions": ["  "]},
        {"uris": ["file:///nowhere/else.mp4"]},
        {"cancelled": True},
    ],
)
def test_a_corrected_request_takes_the_id_of_a_refused_one(
    services: Services, clip: Path, wrong: dict[str, object]
) -> None:
    request = job(clip)
    for name in wrong:
        request.ClearField(name)
    request.MergeFrom(RecordingJob(**wrong))  # type: ignore[arg-type]
    for _ in range(2):
        services.ask(request)
        services.work()
        assert services.answers("job-1").state in {
            RecordingAnswers.STATE_REFUSED,
            RecordingAnswers.STATE_CANCELLED,
        }
    services.ask(job(clip))
    services.work()
    answers = services.answers("job-1")
    assert (answers.state, answers.done, answers.reason) == (RecordingAnswers.STATE_DONE, 4, "")
    assert services.plan.letters == []
    # By now it has parts, and its id is its own.
    services.ask(job(clip, questions=["Is it raining?"]))
    services.work()
    assert [letter.reason for letter in services.plan.letters] == ["job-exists"]
    assert services.answers("job-1") == answers


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"questions": []}, "questions: give at least one"),
        ({"questions": ["  "]}, "the question is empty"),
        ({"uris": []}, "uris: give at least one"),
        ({"settings": RecordingSettings(start_s=5, end_s=5)}, "the range from 5 s to 5 s is empty"),
        ({"settings": RecordingSettings(fps=1000, part_frames=1)}, "parts or more"),
        ({"cancelled": True}, "cancelled before it was planned"),
    ],
)
def test_a_request_that_cannot_be_followed_is_answered_so(
    services: Services, clip: Path, fields: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookout.recordings.jobs.plans.JOB_PARTS", 3)
    request = job(clip)
    for name in fields:
        request.ClearField(name)
    request.MergeFrom(RecordingJob(**fields))  # type: ignore[arg-type]
    services.ask(request)
    services.work()
    answers = services.answers("job-1")
    state = RecordingAnswers.STATE_CANCELLED if "cancelled" in fields else RecordingAnswers.STATE_REFUSED
    assert answers.state == state
    assert why in answers.reason


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"[]",
        b'{"id":"job-1","uris":' + b"9" * 5000 + b"}",
        b'{"id":"other","uris":["/a"],"questions":["?"]}',
        b'{"id":"job-1","uris":["/a"],"questions":["' + b"a" * 900_000 + b'"]}',
        b'{"id":"job-1","uris":["/a"],"questions":["Is it?"],"settings":{"fps":NaN}}',
        b'{"id":"job-1","uris":["/a"],"questions":["Is it?"],"expires_s":1e300}',
    ],
)
def test_bytes_that_are_no_request_are_a_dead_letter_and_an_answer(services: Services, value: bytes) -> None:
    services.topics.add(RECORDINGS.name, "job-1", value)
    services.plan.catch_up(RECORDINGS.name)
    services.work()
    assert [letter.reason for letter in services.plan.letters] == ["bad-job"]
    assert services.answers("job-1").state == RecordingAnswers.STATE_REFUSED


def test_a_part_that_becomes_a_dead_letter_has_its_outcome(services: Services, clip: Path) -> None:
    from lookout.runtime.worker import DeadLetter

    services.ask(job(clip))
    record = services.topics.records[RECORDING_PARTS.name][2]
    result = services.parts_handler.rejected(None, record, DeadLetter("internal-error", "it broke"))
    assert result is not None
    outcome = from_bytes(result.outputs[0].value or b"", RecordingOutcome).part
    assert (outcome.number, outcome.reason) == (
        from_bytes(record.value, RecordingPart).number,
        "internal-error: it broke",
    )


@pytest.mark.slow
def test_a_part_that_nobody_planned_has_an_outcome_without_answers(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    record = services.topics.records[RECORDING_PARTS.name][0]
    forgeries: list[dict[str, object]] = [
        {"span": {"first": 0, "stop": 2**53}},
        {"span": {"number": 7, "first": 0, "stop": 8}},
        {"uri": "file:///etc/passwd"},
        {"settings": {"fps": 0.001}},
        {"mark": ""},
    ]
    for fields in forgeries:
        part = from_bytes(record.value, RecordingPart)
        for name in fields:
            part.ClearField(name)
        part.MergeFrom(RecordingPart(**fields))  # type: ignore[arg-type]
        result = services.parts.handle(dataclasses.replace(record, value=part.SerializeToString()))
        outcome = from_bytes(result.outputs[0].value or b"", RecordingOutcome).part
        assert outcome.reason, fields
        assert not outcome.answers


def test_a_part_whose_outcome_has_no_place_is_a_dead_letter(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    record = services.topics.records[RECORDING_PARTS.name][0]
    part = from_bytes(record.value, RecordingPart)
    part.home = PARTITIONS
    result = services.parts.handle(dataclasses.replace(record, value=part.SerializeToString()))
    assert not result.outputs
    assert [letter.reason for letter in services.parts.letters] == ["bad-part"]


@pytest.mark.slow
def test_a_recording_is_closed_when_no_part_of_it_comes(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    recording = services.parts_handler._recording
    recording._idle_s = 0.05
    services.parts.handle(services.topics.records[RECORDING_PARTS.name][0])
    eventually(lambda: recording.reader is None)
    result = services.parts.handle(services.topics.records[RECORDING_PARTS.name][1])
    assert from_bytes(result.outputs[0].value or b"", RecordingOutcome).part.answers


def test_a_part_of_a_partition_that_was_given_back_stops(services: Services, clip: Path) -> None:
    services.ask(job(clip))
    record = services.topics.records[RECORDING_PARTS.name][0]
    handler = services.parts_handler
    handler._cancelled = lambda _: handler.revoked(record.partition) or False  # type: ignore[func-returns-value]
    result = services.parts.handle(record)
    assert (
        from_bytes(result.outputs[0].value or b"", RecordingOutcome).part.reason
        == "another worker took the part over"
    )


def test_deleting_a_request_forgets_it(services: Services, clip: Path) -> None:
    services.topics.add(RECORDINGS.name, "job-1", b"")
    services.plan.catch_up(RECORDINGS.name)
    assert not services.plan.checkpoints
    assert to_json(job(clip))
