"""When a recording begins: what containers say, and what of that can be true."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import av
import pytest

from lookout.video.files import VideoReader
from lookout.video.files.begin import begin_numbers, begin_of_numbers, stated_begin
from lookout.video.sandbox import open_recording
from tests.unit.video.segments.clips import FORMATS, encode

NOW = datetime(2026, 5, 2, tzinfo=UTC)
APPLE = "com.apple.quicktime.creationdate"


def tagged(tags: dict[str, str], container: str = "mp4") -> bytes:
    """A clip whose container says this of itself."""
    buffer = io.BytesIO()
    options = {"movflags": "use_metadata_tags"} if APPLE in tags else {}
    with (
        av.open(io.BytesIO(encode("mp4", frames=12))) as source,
        av.open(buffer, "w", format=FORMATS.get(container, container), options=options) as out,
    ):
        stream = source.streams.video[0]
        target = out.add_stream_from_template(stream)
        out.metadata.update(tags)
        for packet in source.demux(stream):
            if packet.size:
                packet.stream = target
                out.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"creation_time": "2026-05-01T11:30:00.250000Z"}, datetime(2026, 5, 1, 11, 30, 0, 250_000, UTC)),
        ({"creation_time": "2026-05-01T11:30:00"}, datetime(2026, 5, 1, 11, 30, tzinfo=UTC)),
        ({"creation_time": "2026-05-01 11:30:00"}, datetime(2026, 5, 1, 11, 30, tzinfo=UTC)),
        (
            {"creation_time": "2026-05-01T20:00:00Z", APPLE: "2026-05-01T13:30:00+0200"},
            datetime(2026, 5, 1, 13, 30, tzinfo=timezone(timedelta(hours=2))),
        ),
        (  # of what place that is the time, nobody knows
            {"creation_time": "2026-05-01T11:30:00Z", APPLE: "2026-05-01T13:30:00"},
            datetime(2026, 5, 1, 11, 30, tzinfo=UTC),
        ),
        (
            {"creation_time": "2026-05-01T11:30:00Z", APPLE: "1904-01-01T00:00:00+0200"},
            datetime(2026, 5, 1, 11, 30, tzinfo=UTC),
        ),
        ({"creation_time": "1904-01-01T00:00:00Z"}, None),
        ({"creation_time": "1970-01-01T00:05:00Z"}, None),
        ({"creation_time": "1980-01-01T00:00:00Z"}, None),
        ({"creation_time": "2001-01-01T00:00:00Z"}, None),
        ({"creation_time": "2026-05-02T00:00:01Z"}, None),
        ({"creation_time": "9999-12-31T23:59:59-23:59"}, None),
        ({"creation_time": "0001-01-01T00:00:00+23:59"}, None),
        ({"creation_time": "yesterday"}, None),
        ({"creation_time": "2026-13-01T00:00:00Z"}, None),
        ({"creation_time": "9" * 100_000}, None),
        ({"creation_time": "\ufffd"}, None),
        ({"creation_time": ""}, None),
        ({"title": "2026-05-01T11:30:00Z"}, None),
        ({}, None),
    ],
)
def test_what_a_container_says(tags: dict[str, str], expected: datetime | None) -> None:
    begin = stated_begin(tags, NOW)
    assert begin == expected
    assert begin is None or expected is None or begin.utcoffset() == expected.utcoffset()


@pytest.mark.parametrize("offset", [0, 330, -570, 1439, -1439])
def test_numbers_and_back(offset: int) -> None:
    begin = datetime(2026, 5, 1, 13, 30, 0, 1, timezone(timedelta(minutes=offset)))
    again = begin_of_numbers(*begin_numbers(begin))
    assert (again, again.utcoffset()) == (begin, begin.utcoffset())


@pytest.mark.parametrize("container", ["mp4", "mov", "mkv"])
def test_real_files_say_it(container: str) -> None:
    tags = {"creation_time": "2024-05-01T11:30:00.000000Z"}
    with VideoReader(tagged(tags, container)) as reader:
        assert reader.facts.begins == datetime(2024, 5, 1, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
def test_files_that_say_nothing(container: str) -> None:
    with VideoReader(tagged({}, container)) as reader:
        assert reader.facts.begins is None


def test_a_phone_names_its_offset() -> None:
    with VideoReader(tagged({APPLE: "2024-05-01T13:30:00+0200"}, "mov")) as reader:
        assert reader.facts.begins is not None
        assert reader.facts.begins.isoformat() == "2024-05-01T13:30:00+02:00"


@pytest.mark.slow
@pytest.mark.parametrize(
    "tags", [{}, {"creation_time": "2024-05-01T11:30:00Z"}, {APPLE: "2024-05-01T13:30:00-0930"}]
)
def test_the_sandbox_says_the_same(tags: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "clip.mov"
    path.write_bytes(tagged(tags, "mov"))
    with VideoReader(path) as plain, open_recording(path, sandbox=True, workers=1) as reader:
        assert reader.facts.begins == plain.facts.begins
        assert (reader.facts.begins is None) == (not tags)
        if plain.facts.begins is not None and reader.facts.begins is not None:
            assert reader.facts.begins.utcoffset() == plain.facts.begins.utcoffset()
