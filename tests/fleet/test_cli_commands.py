"""The commands on a real Kafka: what they publish, list, follow and find wrong."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Thread

import av
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from lookout.administration import WatchError
from lookout.administration.erasures import ErasureError
from lookout.cli import watches
from lookout.cli.app import app
from lookout.cli.connect import CommittedReader, read_erasures, reading, send_and_confirm
from lookout.cli.label import write_labels
from lookout.cli.options import CliError, Position
from lookout.cli.publish import Publisher
from lookout.local import KafkaServer, create_topics
from lookout.text import clean
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.labels_pb2 import Label
from lookout.v1.recordings_pb2 import RecordingJob
from lookout.v1.state_pb2 import Checkpoint, DecodeState
from lookout.v1.watches_pb2 import Watch
from lookout.video.segments import DecodeRequest, SoftwareDecoder
from lookout.wire import (
    ALERTS,
    LABELS,
    MAX_SEGMENT_BYTES,
    PIPELINE,
    RECORDINGS,
    SEGMENTS,
    WATCHES,
    Stage,
    all_topics,
    key_text,
    to_json,
)
from lookout.wire.headers import CAPTURED_AT, text
from tests.clock import at
from tests.eventually import eventually
from tests.unit.services.decode_case import World, samples
from tests.unit.video.segments.clips import encode, trimmed

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with KafkaServer() as server:
        create_topics(server.bootstrap, 2)
        yield server.bootstrap


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "10", "bf": "0", "sc_threshold": "0"})
        stream.width = stream.height = 64
        for index in range(50):
            picture = np.random.default_rng(index).integers(0, 255, (64, 64, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return path


def lookout(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.output


def records(broker: str, topic: str, camera: str) -> list[object]:
    with reading(broker, [topic], Position(oldest=True)) as reader:
        return [message for message in reader.until_now() if message.key() == camera.encode()]


@pytest.mark.long
def test_a_file_is_published_in_pieces_that_begin_at_keyframes(broker: str, clip: Path) -> None:
    code, said = lookout(
        "publish", str(clip), "--camera", "gate", "-b", broker, "--captured-at", "2026-01-02T03:04:05"
    )
    assert code == 0
    assert "confirmed 3 segments" in said
    found = records(broker, SEGMENTS.name, "gate")
    stamps = [int(text(message.headers(), CAPTURED_AT) or 0) for message in found]  # type: ignore[attr-defined]
    assert [stamp - stamps[0] for stamp in stamps] == [0, 2000, 4000]
    assert {message.partition() for message in found} == {found[0].partition()}  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_kafka_that_dies_while_a_file_is_published_and_how_to_go_on(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookout.cli.publish.Publisher", partial(Publisher, timeout_s=5.0))
    with KafkaServer() as server:
        create_topics(server.bootstrap, 2)

        def kill() -> None:
            eventually(lambda: records(server.bootstrap, SEGMENTS.name, "gate"))
            server.kill()

        killer = Thread(target=kill)
        killer.start()
        with pytest.raises(CliError, match=r"did not take a segment \(Local: Message timed out; ") as failure:
            lookout("publish", str(clip), "-c", "gate", "-b", server.bootstrap, "--rate", "real")
        killer.join()
        (begin,) = re.findall(r"publish again with --captured-at (\S+):", str(failure.value))
        server.start()
        code, said = lookout(
            "publish", str(clip), "-c", "gate", "-b", server.bootstrap, "--captured-at", begin
        )
        assert code == 0, said
        stamps = [
            int(text(message.headers(), CAPTURED_AT) or 0)  # type: ignore[attr-defined]
            for message in records(server.bootstrap, SEGMENTS.name, "gate")
        ]
    assert stamps[-3:] == [stamps[0], stamps[0] + 2000, stamps[0] + 4000]
    assert set(stamps) == set(stamps[-3:])
    assert len(stamps) > 3


@pytest.mark.long
def test_two_clips_published_one_after_the_other_are_watched_whole(broker: str, clip: Path) -> None:
    """The second begins, by its clock, while the first lasts: it was late, and nobody asked it."""
    command = [sys.executable, "-m", "lookout.cli", "publish", str(clip), "-c", "loop", "-b", broker]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True)
    world, written = World(), []
    for message in records(broker, SEGMENTS.name, "loop"):
        captured_at = text(message.headers(), CAPTURED_AT)  # type: ignore[attr-defined]
        written += world.send(message.value(), after_ms=10, captured_at=str(captured_at))  # type: ignore[attr-defined]
    assert [record.WhichOneof("body") for record in written] == [*["segment"] * 3, "event", *["segment"] * 3]
    assert samples(written) == [*range(10), *range(10)]


def test_what_was_cut_away_at_the_beginning_of_a_file_is_not_shown(broker: str, clip: Path) -> None:
    clip.write_bytes(trimmed(clip.read_bytes(), 1.75))
    code, said = lookout("publish", str(clip), "--camera", "phone", "-b", broker)
    assert code == 0, said
    pieces = [message.value() for message in records(broker, SEGMENTS.name, "phone")]  # type: ignore[attr-defined]
    found = [SoftwareDecoder().decode(piece, DecodeRequest(28, 28)).facts for piece in pieces]
    assert [(facts.container, facts.frames) for facts in found] == [("mp4", 22), ("mpegts", 10)]
    assert found[0].first_us == 0


def test_a_folder_may_be_many_cameras_and_a_broken_file_stops_none(
    broker: str, clip: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"\0" * 100)
    code, said = lookout("publish", str(tmp_path), "--camera", "yard-{name}", "-b", broker)
    assert code == 1
    assert "broken.mp4" in said
    assert len(records(broker, SEGMENTS.name, "yard-clip")) == 3


def test_a_file_that_breaks_off_is_named_and_the_next_one_follows_what_was_sent(
    broker: str, clip: Path, tmp_path: Path
) -> None:
    cut_off = encode("fmp4", frames=50, gop=10, speed=1)
    (tmp_path / "a.mp4").write_bytes(cut_off[: len(cut_off) * 2 // 3])
    code, said = lookout("publish", str(tmp_path), "--camera", "line", "-b", broker)
    assert code == 1
    assert "a.mp4: unreadable: the file breaks off" in said
    times = [
        int(text(message.headers(), CAPTURED_AT) or 0)  # type: ignore[attr-defined]
        for message in records(broker, SEGMENTS.name, "line")
    ]
    assert [time - times[0] for time in times[:3]] == [0, 2000, 3100]
    assert len(times) == 5


def test_whole_files_go_as_they_are(broker: str, clip: Path, tmp_path: Path) -> None:
    code, _ = lookout("publish", str(clip), "--camera", "whole", "--whole", "-b", broker)
    (message,) = records(broker, SEGMENTS.name, "whole")
    assert code == 0
    assert message.value() == clip.read_bytes()  # type: ignore[attr-defined]
    large = tmp_path / "large.mp4"
    large.write_bytes(bytes(MAX_SEGMENT_BYTES + 1))
    result = CliRunner().invoke(app, ["publish", str(large), "-c", "x", "--whole", "-b", broker])
    assert "exceeds" in str(result.exception)


def test_real_time_takes_as_long_as_the_footage(broker: str, clip: Path) -> None:
    begin = time.monotonic()
    code, _ = lookout("publish", str(clip), "--camera", "live", "--rate", "real", "-b", broker)
    assert code == 0
    assert time.monotonic() - begin >= 5.0


def test_watches_come_change_and_go(broker: str) -> None:
    assert lookout("watch", "add", "Is the door open?", "--id", "door", "-c", "hall-*", "-b", broker)[0] == 0
    assert lookout("watch", "add", "Is the door wide open?", "--id", "door", "-b", broker)[0] == 0
    code, said = lookout("watch", "list", "--json", "-b", broker)
    (watch,) = map(json.loads, said.strip().splitlines())
    assert code == 0
    assert (watch["version"], watch["question"]) == (2, "Is the door wide open?")
    assert "cameras" not in watch
    assert lookout("watch", "remove", "door", "-b", broker)[0] == 0
    assert "No watches" in lookout("watch", "list", "-b", broker)[1]


def version_of(said: str) -> str:
    return said.split(" version ")[1].split(":", maxsplit=1)[0]


def test_a_watch_that_is_removed_and_added_again_begins_behind_its_old_versions(broker: str) -> None:
    """With version 1 again, an incident that was open went on under the new question."""
    add = ("watch", "add", "Is the lid open?", "--id", "lid", "-b", broker)
    for version in ("1", "2"):
        assert version_of(lookout(*add)[1]) == version
    assert lookout("watch", "rm", "lid", "-b", broker)[0] == 0
    assert version_of(lookout("watch", "add", "Is the lid shut?", "--id", "lid", "-b", broker)[1]) == "3"
    assert lookout("watch", "rm", "lid", "-b", broker)[0] == 0


def test_two_who_change_a_watch_at_once_have_versions_of_their_own(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wrote version 2, and both were told that theirs holds."""
    add = ("watch", "add", "Is the lid open?", "--id", "race", "-b", broker)
    assert lookout(*add)[0] == 0
    other = Watch(id="race", version=2, question="Is the lid shut?")
    send = watches.send_and_confirm

    def send_after_other(bootstrap: str, topic: str, values: Mapping[str, bytes | None]) -> None:
        monkeypatch.setattr(watches, "send_and_confirm", send)
        send(bootstrap, topic, {other.id: to_json(other)})
        send(bootstrap, topic, values)

    monkeypatch.setattr(watches, "send_and_confirm", send_after_other)
    assert version_of(lookout(*add)[1]) == "3"

    def send_before_other(bootstrap: str, topic: str, values: Mapping[str, bytes | None]) -> None:
        send(bootstrap, topic, values)
        other.version = json.loads(values["race"] or b"")["version"]
        send(bootstrap, topic, {other.id: to_json(other)})

    with monkeypatch.context() as patch:
        patch.setattr(watches, "send_and_confirm", send_before_other)
        with pytest.raises(WatchError, match=r"it now asks “Is the lid shut[?]”\) by somebody else"):
            lookout(*add)
    assert lookout("watch", "rm", "race", "-b", broker)[0] == 0


def test_a_record_of_no_bytes_removes_no_watch_and_no_job(broker: str) -> None:
    """Kafka deletes by a null value alone: the fleet went on asking what the list did not show."""
    assert lookout("watch", "add", "Is the lid open?", "--id", "kept", "-b", broker)[0] == 0
    send_and_confirm(broker, WATCHES.name, {"kept": b""})
    said = " ".join(lookout("watch", "list", "-b", broker)[1].split())
    assert "skipped kept: not a lookout.v1.Watch in JSON" in said
    assert "version 1 stays in force" in said
    assert lookout("watch", "rm", "kept", "-b", broker)[0] == 0
    job = RecordingJob(id="a-job", uris=["file:///a.mp4"], questions=["Is it?"])
    for value in (to_json(job), b""):
        send_and_confirm(broker, RECORDINGS.name, {"a-job": value})
    assert "a-job" in lookout("recordings", "list", "-b", broker)[1]


def test_an_erasure_takes_footage_of_a_clock_that_is_ahead_as_well(broker: str) -> None:
    """It was confirmed by everybody, and what lay in the future stayed."""
    offset_us, length_us = 2_000_000_000_000_000, 60_000_000
    state = DecodeState(epoch=1, wall_offset_us=offset_us, watermark_us=length_us)
    checkpoint = Checkpoint(decode=state).SerializeToString()
    send_and_confirm(broker, PIPELINE[Stage.DECODE].state.name, {"ahead": checkpoint})
    for options in ((), ("--since", "1h")):
        code, said = lookout("erase", "-c", "ahead", *options, "--yes", "--wait", "0", "-b", broker)
        assert (code, "clock is ahead" in said) == (0, True)
        first, second = list(read_erasures(broker).erasures.values())[-2:]
        assert (first.whole, first.end_us < offset_us) == (not options, True)
        assert (second.whole, second.begin_us, second.end_us) == (False, offset_us, offset_us + length_us)
    code, said = lookout("erase", "-c", "exact", "--yes", "--wait", "0", "-b", broker)
    assert (code, "clock is ahead" in said) == (0, False)


def test_a_script_that_does_not_confirm_an_erasure_is_told_how(broker: str) -> None:
    """Nobody is there to answer: nothing is erased, and the error names the option."""
    words = ["erase", "-c", "unconfirmed", "--wait", "0", "-b", broker]
    for answer in ("", "n\n"):
        done = CliRunner().invoke(app, words, input=answer)
        assert isinstance(done.exception, CliError)
        assert str(done.exception) == "not confirmed, so nothing was erased; in scripts give --yes"
        assert "Erase everything of camera unconfirmed for ever?" in done.output
    erased = {erasure.camera for erasure in read_erasures(broker).erasures.values()}
    assert "unconfirmed" not in erased
    assert CliRunner().invoke(app, words, input="y\n").exit_code == 0
    assert "unconfirmed" in {erasure.camera for erasure in read_erasures(broker).erasures.values()}


def test_an_erasure_removes_labels_before_it_is_asked_for(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was away at that moment left them for ever, and the command ended well."""
    label = Label(camera="hall", watch="door", incident="abcdef", start=at(1000), end=at(2000))
    write_labels(broker, [label])
    words = ("erase", "-c", "hall", "--yes", "--wait", "0", "-b", broker)

    def away(*_: object) -> None:
        raise CliError("Kafka does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("lookout.cli.label.remove_labels", away)
        with pytest.raises(CliError, match="does not answer"):
            lookout(*words)
    assert "hall" not in {erasure.camera for erasure in read_erasures(broker).erasures.values()}
    assert lookout(*words)[0] == 0
    with reading(broker, [LABELS.name], Position(oldest=True)) as reader:
        assert [message.value() for message in reader.until_now()][-1] is None


def test_a_pattern_is_not_erased_unless_it_is_a_cameras_id(broker: str) -> None:
    """Everybody confirmed it, while no camera that it fits was erased."""
    words = ("erase", "-c", "lane-*", "--yes", "--wait", "0", "-b", broker)
    with pytest.raises(ErasureError, match="not a camera's id: give one id, not a pattern"):
        lookout(*words)
    checkpoint = Checkpoint(decode=DecodeState(epoch=1)).SerializeToString()
    send_and_confirm(broker, PIPELINE[Stage.DECODE].state.name, {"lane-*": checkpoint})
    assert lookout(*words)[0] == 0


def test_a_question_does_not_take_the_place_of_another_by_its_id(broker: str, clip: Path) -> None:
    assert "no watch exists yet" in lookout("publish", str(clip), "-c", "early", "-b", broker)[1]
    assert lookout("watch", "add", "Is the gate open?", "-b", broker)[0] == 0
    assert "no watch exists yet" not in lookout("publish", str(clip), "-c", "late", "-b", broker)[1]
    with pytest.raises(
        CliError, match=r"watch gate-open asks “Is the gate open[?]”: name the new watch with --id"
    ):
        lookout("watch", "add", "Is any gate open?", "-b", broker)
    code, said = lookout("watch", "add", "Is the gate open?", "--threshold", "0.7", "-b", broker)
    assert (code, "version 2" in said) == (0, True)
    assert lookout("watch", "rm", "gate-open", "-b", broker)[0] == 0


def test_a_watch_that_is_left_out_says_why_in_the_list(broker: str) -> None:
    spans = [{"start": "08:00", "end": "17:00", "time_zone": "Berlin"}]
    bad = {"id": "zone", "version": 1, "question": "Is it?", "rule": {"schedule": spans}}
    send_and_confirm(broker, WATCHES.name, {"zone": json.dumps(bad).encode(), "torn": b"{nope"})
    said = " ".join(lookout("watch", "list", "-b", broker)[1].split())
    assert "skipped torn: not a lookout.v1.Watch in JSON" in said
    assert "skipped zone: schedule: 'Berlin'" in said
    assert lookout("watch", "rm", "zone", "torn", "-b", broker)[0] == 0


def test_a_watch_that_no_reader_takes_blinds_nothing_and_can_be_removed(broker: str) -> None:
    digits = b'{"id": "digits", "question": "Is it?", "version": ' + b"9" * 5000 + b"}"
    keys = {b"digits": digits, b"\xff\x1b[2J": b"{}", b"k" * 100_000: b"{}", b"many": b"[" * 100_000}
    send_and_confirm(broker, WATCHES.name, keys)
    assert lookout("watch", "add", "Is the gate open?", "-b", broker)[0] == 0
    listed = lookout("watch", "list", "-b", broker)[1]
    assert "gate-open" in listed
    assert "\x1b" not in listed
    assert len(listed) < 10_000
    shown = [clean(key_text(key), 200) for key in keys]
    assert lookout("watch", "rm", "gate-open", *shown, "-b", broker)[0] == 0
    listed = lookout("watch", "list", "-b", broker)[1]
    assert "No watches" in listed
    assert "skipped" not in listed


def test_a_watch_beyond_the_limits_is_refused(broker: str) -> None:
    for option, kind, words in (
        (("--of", "2/65"), CliError, "65"),
        (("--cooldown", "1e300"), CliError, "cooldown"),
        (("--id", "x" * 65), CliError, "use 1 to 64"),
        (("--id", "yard [2]"), CliError, "use 1 to 64"),
    ):
        with pytest.raises(kind, match=words):
            lookout("watch", "add", "Is it?", *option, "-b", broker)


def test_alerts_are_shown_to_people_and_machines(broker: str) -> None:
    alert = Alert(
        id="1",
        incident="abcdef0123456789",
        kind=Alert.KIND_OPENED,
        camera="gate",
        watch="fall",
        question="Is anyone lying on the ground?",
        score=0.93,
        peak=0.95,
        start=at(1_700_000_000_000),
        end=at(1_700_000_004_000),
    )
    send_and_confirm(broker, ALERTS.name, {"gate": to_json(alert)})
    code, said = lookout("alerts", "--since", "start", "--no-follow", "-b", broker)
    assert code == 0
    assert "opened" in said
    assert "0.93" in said
    assert "Is anyone lying on the ground?" in said
    code, said = lookout("alerts", "--since", "start", "--count", "1", "--json", "-b", broker)
    assert json.loads(said)["incident"] == "abcdef0123456789"
    said = lookout("alerts", "--since", "5m", "--camera", "other*", "--no-follow", "-b", broker)[1]
    assert said.startswith("no matching alert")
    code, said = lookout("alerts", "--camera", "other*", "--no-follow", "--json", "-b", broker)
    assert (code, said) == (0, "")


def test_reading_until_now_passes_transaction_marks(broker: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker, "transactional.id": "marks"})
    producer.init_transactions()
    for value, keep in ((b"kept", True), (b"dropped", False)):
        producer.begin_transaction()
        producer.produce("frames.v1", key="marks", value=value)
        # Kafka shows a committed record once its mark is written, and begins no transaction before: the
        # second one has to reach the broker, else the first may still be hidden below.
        producer.flush()
        producer.commit_transaction() if keep else producer.abort_transaction()
    reader = CommittedReader(broker, ["frames.v1"], Position(oldest=True))
    assert [message.value() for message in reader.until_now() if message.key() == b"marks"] == [b"kept"]
    reader.close()


@pytest.mark.long
def test_doctor_names_what_is_missing_or_set_otherwise_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a new broker may need longer than a user waits to answer for groups of consumers.
    monkeypatch.setattr("lookout.cli.doctor._ANSWER_S", 120.0)
    with KafkaServer() as bare:
        missing = ask_doctor(bare.bootstrap)  # the first question about groups: their topic is made now
        by_producers_clocks = replace(SEGMENTS, broker_time=False)
        create_topics(
            bare.bootstrap, topics=[by_producers_clocks, *(each for each in all_topics() if each != SEGMENTS)]
        )
        wrong = ask_doctor(bare.bootstrap)
        with monkeypatch.context() as patch:
            patch.setattr("lookout.runtime.fleet_checks._stages", no_answer)
            slow = ask_doctor(bare.bootstrap)
    assert missing["Kafka"]["state"] == "ok", missing["Kafka"]
    assert missing["stage decode"]["found"] == "no worker"
    assert slow["Kafka"]["state"] == "bad"
    assert "answered, then took longer" in slow["Kafka"]["found"]
    assert missing["topics"]["state"] == "bad"
    assert "camera.segments.v1" in missing["topics"]["found"]
    assert missing["topics"]["advice"]
    assert "topics" not in wrong
    assert wrong["topic settings"]["state"] == "bad"
    said = wrong["topic settings"]["found"]
    assert said == "camera.segments.v1 message.timestamp.type=CreateTime, must be LogAppendTime"


def no_answer(*_: object) -> Iterator[object]:
    raise TimeoutError


def ask_doctor(bootstrap: str) -> dict[str, dict[str, str]]:
    code, said = lookout("doctor", "--json", "-b", bootstrap)
    assert code == 1
    rows = [json.loads(line) for line in said.strip().splitlines()]
    assert not [row for row in rows if row["found"].rstrip().endswith(":")]
    named = [row["about"] for row in rows if row["about"] != "topic settings"]
    assert len(set(named)) == len(named), "two rows may contradict each other"
    return {row["about"]: row for row in rows}


def check_published_masked(broker: str, clip: Path) -> None:
    """`publish --mask` sends what the mask of camera gate leaves, and nothing of a camera without one."""
    with pytest.raises(CliError, match="camera door has no mask"):
        lookout("publish", str(clip), "--camera", "door", "--mask", "-b", broker)
    assert not records(broker, SEGMENTS.name, "door")
    with pytest.raises(CliError, match="--whole sends them as they are"):
        lookout("publish", str(clip), "--camera", "gate", "--mask", "--whole", "-b", broker)
    sent = [len(records(broker, SEGMENTS.name, "gate"))]
    for option in ((), ("--mask",)):
        assert lookout("publish", str(clip), "--camera", "gate", *option, "-b", broker)[0] == 0
        sent.append(len(records(broker, SEGMENTS.name, "gate")))
    plain, masked = (records(broker, SEGMENTS.name, "gate")[begin:end] for begin, end in pairwise(sent))
    assert len(plain) == len(masked)
    for before, after in zip(plain, masked, strict=True):
        shown, hidden = (last_picture(message.value()) for message in (before, after))  # type: ignore[attr-defined]
        height, width = shown.shape
        left_top = (slice(0, height // 5), slice(0, width // 5))  # outside of what is kept
        assert hidden[left_top].std() < 2
        kept = (slice(height // 8, height // 6), slice(width * 3 // 4, width * 4 // 5))
        assert abs(shown[kept].astype(float) - hidden[kept]).mean() < 8


def last_picture(segment: bytes) -> npt.NDArray[np.uint8]:
    """Luma of a segment's last picture."""
    with av.open(io.BytesIO(segment)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)][-1]


@pytest.mark.long
def test_masks_are_set_listed_and_lifted(broker: str, clip: Path) -> None:
    door, desk = "door:0.1,0.2 0.4,0.2 0.4,0.9", "desk:0.6,0.1 0.9,0.1 0.9,0.4"
    mask = ("camera", "mask")
    assert "Nothing is hidden" in lookout(*mask, "list", "-b", broker)[1]
    with pytest.raises(CliError, match="give polygons"):
        lookout(*mask, "set", "gate", "-b", broker)
    with pytest.raises(CliError, match=r"--hide .* give at least three corners"):
        lookout(*mask, "set", "gate", "--hide", "door:0.1,0.2 0.4,0.2", "-b", broker)
    code, text = lookout(*mask, "set", "gate", "--hide", door, "--keep", desk, "-b", broker)
    assert (code, "inside door and outside desk" in text) == (0, True), text
    assert "door" in lookout(*mask, "list", "-b", broker)[1]
    check_published_masked(broker, clip)
    code, text = lookout(*mask, "set", "gate", "--nothing", "-b", broker)
    assert (code, "stays hidden" in text) == (0, True), text
    history = lookout(*mask, "history", "gate", "-b", broker)[1]
    assert history.index("nothing") < history.index("door"), history
    assert "Nothing is hidden" in lookout(*mask, "list", "-b", broker)[1]


def test_a_camera_that_publishes_by_itself_has_a_time_zone(broker: str) -> None:
    with pytest.raises(CliError, match="'Mars/Olympus' is not an IANA time zone"):
        lookout("camera", "time-zone", "dome", "Mars/Olympus", "-b", broker)
    assert lookout("camera", "time-zone", "dome", "Asia/Kathmandu", "-b", broker)[0] == 0
    listed = lookout("camera", "list", "-b", broker)[1]
    assert re.search(r"dome +publishes by itself +Asia/Kathmandu", listed)
    assert lookout("camera", "time-zone", "dome", "", "-b", broker)[0] == 0
    assert "Asia/Kathmandu" not in lookout("camera", "list", "-b", broker)[1]
