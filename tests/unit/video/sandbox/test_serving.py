"""Confined decoders read a recording that this process reads for them."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import pytest

from lookout.video.files import VideoReader
from lookout.video.files.ranged import PIECE, RangedSource
from lookout.video.sandbox import SandboxedReader, open_recording
from lookout.video.sandbox.exchange import receive_message, send_message
from lookout.video.sandbox.pool import SandboxPool, SandboxSettings
from lookout.video.sandbox.serving import served
from lookout.video.segments import CodecError
from tests.unit.video.files.test_ranged import Elsewhere
from tests.unit.video.files.test_reader import SIZE, clip
from tests.unit.video.segments.clips import encode


class GoneError(Exception):
    """Fake: the place where the recording lies is away."""


@pytest.mark.parametrize("container", ["mp4", "ts"])
def test_the_frames_are_those_of_the_file(container: str) -> None:
    data = encode(container, frames=90, speed=1)
    elsewhere = Elsewhere(data)
    with VideoReader(data) as plain, SandboxedReader(elsewhere.source(), workers=2) as reader:
        assert reader.times_us.tolist() == plain.times_us.tolist()
        assert (reader.facts.name, reader.size) == ("elsewhere", plain.size)
        for fps in (5.0, 1.0):
            assert (reader.read(fps, size=SIZE).pixels == plain.read(fps, size=SIZE).pixels).all()
    assert sum(stop - start for start, stop in elsewhere.ranges) <= len(elsewhere.data)


@pytest.mark.slow
def test_what_reading_raises_ends_the_reading() -> None:
    elsewhere = Elsewhere(clip("open"))
    failures: list[Exception] = []

    def read(start: int, stop: int) -> bytes:
        if failures:
            raise failures[0]
        return elsewhere.read(start, stop)

    source = RangedSource("elsewhere", len(elsewhere.data), read)
    with open_recording(source, sandbox=True, workers=1) as reader:
        failures.append(GoneError("away"))
        source._pieces.clear()
        with pytest.raises(GoneError, match="away"):
            reader.read(5, size=SIZE)
        failures.clear()
        assert len(reader.read(5, size=SIZE)) > 10
    failures.append(GoneError("away"))
    source._pieces.clear()
    with pytest.raises(GoneError), SandboxedReader(source, workers=1):
        pass


def test_no_recording_is_named_as_such() -> None:
    source = Elsewhere(b"no video" * 10_000).source()
    with pytest.raises(CodecError, match="this is not a video"), SandboxedReader(source, workers=1):
        pass


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_reads_is_replaced() -> None:
    elsewhere = Elsewhere(clip("open"))
    with SandboxPool(1, SandboxSettings()) as pool:
        pids: list[int] = []

        def read(start: int, stop: int) -> bytes:
            if not pids:
                pids.extend(pool.pids())
                next(iter(pool._alive)).kill()
            return elsewhere.read(start, stop)

        table = pool.recording_table("x", RangedSource("x", len(elsewhere.data), read))
        assert len(table.pts) == 90
        assert pool.restarts == 1


@pytest.mark.parametrize(
    "request_bytes",
    [b"\xff" * 64, struct.pack("<I", 3) + b"abc", struct.pack("<I", 1 << 31)],
)
def test_a_process_that_asks_for_nonsense_gets_nothing(request_bytes: bytes) -> None:
    elsewhere = Elsewhere()
    with served(elsewhere.source()) as descriptor:
        os.write(descriptor, request_bytes)
        with suppress(ConnectionResetError):  # part of it was not read
            assert os.read(descriptor, 100) == b""
    assert elsewhere.ranges == []


def test_a_process_gets_at_most_a_piece_and_nothing_beyond_the_end() -> None:
    elsewhere = Elsewhere()
    with served(elsewhere.source()) as descriptor:
        for offset in (0, 1 << 63, len(elsewhere.data)):
            send_message(descriptor, struct.pack("<QI", offset, (1 << 32) - 1))
            expected = elsewhere.data[:PIECE] if not offset else b""
            assert receive_message(descriptor, 1 << 20) == expected
