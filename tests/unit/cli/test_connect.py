"""How commands reach Kafka: one that asks for a password, and one that takes its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from lookout.cli.connect import client_options, find_bootstrap, kafka_settings, reading
from lookout.cli.options import CliError, Position
from lookout.local import FleetAddress
from lookout.runtime.worker import load_settings
from lookout.services.prefill.settings import PrefillSettings
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.frames_pb2 import FramesRecord, SegmentFrames
from lookout.v1.lineage_pb2 import StreamEvent
from lookout.v1.tokens_pb2 import StrideBlock, TokensRecord
from lookout.wire import ERASURES, FRAMES, SEGMENTS, TOKENS, dead_letters, to_json
from tests.mock_kafka import mock_kafka


def test_settings_of_a_local_fleet_and_of_the_environment_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("canary")
    login = {
        "kafka_protocol": "sasl_plaintext",
        "kafka_mechanism": "SCRAM-SHA-512",
        "kafka_username": "lookout",
        "kafka_password_file": str(password),
    }
    security = {**login, "redis_password_file": str(password)}
    fleet = FleetAddress("127.0.0.1:1", "redis://127.0.0.1:2/0", str(tmp_path), 1, {}, {}, security=security)
    monkeypatch.setattr("lookout.local.addresses.running_fleets", lambda: [fleet])
    for name, value in login.items():
        monkeypatch.setenv(f"LOOKOUT_{name.upper()}", value)
    for bootstrap in (fleet.bootstrap, "127.0.0.1:3"):
        settings = load_settings(
            PrefillSettings,
            {},
            **{"mode": "local", "model_dir": tmp_path, "bootstrap": bootstrap, **kafka_settings(bootstrap)},
        )
        options = settings.kafka_security()
        assert options["sasl.password"] == "canary"
        assert options.items() <= client_options(bootstrap).items()


def test_an_address_in_another_encoding_is_refused() -> None:
    with pytest.raises(CliError, match=r"--bootstrap: kafk\\udce9:9092 is not valid UTF-8"):
        find_bootstrap("kafk\udce9:9092")


@pytest.fixture
def fake_kafka() -> Iterator[str]:
    """Two topics of four partitions and a record in each."""
    topics = ("requests", "answers")
    with mock_kafka((name, part, None, name.encode()) for name in topics for part in range(4)) as address:
        yield address


def test_topics_are_read_with_a_few_questions_to_kafka(
    fake_kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with some for every partition: under load `recordings list` waited minutes for them."""
    asked = []
    ask = AdminClient.list_offsets

    def counted(self: AdminClient, *words: Any, **options: Any) -> Any:
        asked.append(words)
        return ask(self, *words, **options)

    monkeypatch.setattr(AdminClient, "list_offsets", counted)
    with reading(fake_kafka, ["requests", "answers"], Position(oldest=True)) as reader:
        values = [message.value() for message in reader.until_now()]
    assert sorted(values) == [b"answers"] * 4 + [b"requests"] * 4
    assert len(asked) == 2
    with reading(fake_kafka, ["requests"], Position()) as reader:
        assert list(reader.until_now()) == []


def test_a_kafka_that_takes_too_long_is_named(fake_kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookout.cli.connect._OPEN_S", 0.0)
    with (
        pytest.raises(CliError, match=f"Kafka at {fake_kafka} does not answer: no answer within 0 s"),
        reading(fake_kafka, ["requests"], Position(oldest=True)),
    ):
        pass


def test_no_record_of_an_erased_time_is_shown() -> None:
    """Neither answers nor what the page says of footage, masks of movement among it."""
    erasure = Erasure(id="e-1", camera="gate", begin_us=0, end_us=12_000_000, requested_us=12_000_000)
    records: list[tuple[str, int, str | None, bytes | None]] = [(ERASURES.name, 0, "e-1", to_json(erasure))]
    for camera in ("gate", "yard"):
        for start_us in (0, 10_000_000):
            records += [(topic, 0, camera, value) for topic, value in of_two_seconds(camera, start_us)]
        records.append((dead_letters(SEGMENTS).name, 0, camera, b"rubbish"))  # of now
    topics = [FRAMES.name, TOKENS.name, dead_letters(SEGMENTS).name]
    with mock_kafka(records) as address, reading(address, topics, Position(oldest=True)) as reader:
        shown = Counter(message.key() for message in reader.until_now())
    assert shown == {b"yard": 9, b"gate": 5}


def of_two_seconds(camera: str, start_us: int) -> Iterator[tuple[str, bytes]]:
    """Records of a stream that began 5 s behind 1970: of footage, and of an event in its place."""
    span, wall_us = {"start_us": start_us, "end_us": start_us + 2_000_000}, 5_000_000
    event = StreamEvent(kind=StreamEvent.KIND_GAP, **span)
    for frames in ({"segment": SegmentFrames(**span)}, {"event": event}):
        record = FramesRecord(camera=camera, wall_offset_us=wall_us, **frames)
        yield FRAMES.name, record.SerializeToString()
    for tokens in ({"block": StrideBlock(**span)}, {"event": event}):
        yield TOKENS.name, TokensRecord(camera=camera, wall_offset_us=wall_us, **tokens).SerializeToString()
