"""Bytes that would make FFmpeg read other files or open sockets are refused without doing so."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lookout.video.sandbox import SandboxPool
from lookout.video.segments import CodecError, DecodeRequest, Reason, SoftwareDecoder, cut
from tests.unit.video.segments.clips import encode

CLIP = encode("ts", frames=10)
CLIPS = {name: encode(name, frames=10, bframes=1) for name in ("ts", "mp4", "mkv", "h264")}
CLIPS["avi"] = encode("avi", "mpeg4", frames=10)


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(1) as pool:
        yield pool


def hostile(path: Path, port: int) -> dict[str, bytes]:
    target = path / "secret.ts"
    target.write_bytes(CLIP)
    return {
        "ffconcat": f"ffconcat version 1.0\nfile '{target}'\n".encode(),
        "sdp": (
            f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
            "a=rtpmap:96 H264/90000\n"
        ).encode(),
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:{port}/x.ts\n".encode(),
        "hls file": f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{target}\n#EXT-X-ENDLIST\n".encode(),
        "dash": (
            b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period>'
            b'<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>'
            + f"http://127.0.0.1:{port}/x.mp4".encode()
            + b"</BaseURL></Representation></AdaptationSet></Period></MPD>"
        ),
        "asx": f'<asx version="3.0"><entry><ref href="http://127.0.0.1:{port}/x"/></entry></asx>'.encode(),
        "filter": b"movie=/etc/passwd",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "text": b"GET / HTTP/1.1\r\n\r\n" * 50,
        "zip": b"PK\x03\x04" + bytes(400),
    }


NAMES = ("ffconcat", "sdp", "hls", "hls file", "dash", "asx", "filter", "svg", "text", "zip")


@pytest.mark.parametrize("name", NAMES)
def test_references_are_not_followed(name: str, tmp_path: Path, pool: SandboxPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        data = hostile(tmp_path, server.getsockname()[1])[name]
        for decode in (pool.decode, SoftwareDecoder().decode):
            with pytest.raises(CodecError) as caught:
                decode(data, DecodeRequest(28, 28))
            assert caught.value.reason is Reason.UNREADABLE
        (tmp_path / "found.mp4").write_bytes(data)
        for pieces in (cut(io.BytesIO(data)), pool.cut(tmp_path / "found.mp4")):
            with pytest.raises(CodecError) as caught:
                list(pieces)
            assert caught.value.reason is Reason.UNREADABLE
        with pytest.raises(TimeoutError):
            server.accept()
    assert pool.restarts == 0


def test_a_movie_that_refers_to_another_file_is_not_followed(tmp_path: Path) -> None:
    """A QuickTime data reference (dref) with an absolute path: FFmpeg can follow these."""
    secret = tmp_path / "secret.mov"
    secret.write_bytes(encode("mov", frames=5))
    movie = bytearray(encode("mov", frames=5))
    at = movie.index(b"url \x00\x00\x00\x01")
    movie[at : at + 8] = b"url \x00\x00\x00\x00"  # no longer 'in this file'
    try:
        decoded = SoftwareDecoder().decode(bytes(movie), DecodeRequest(28, 28))
    except CodecError:
        return
    assert decoded.facts.frames <= 5


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_damaged_bytes_decode_or_fail_cleanly(pool: SandboxPool, data: st.DataObject) -> None:
    clip = bytearray(CLIPS[data.draw(st.sampled_from(sorted(CLIPS)))])
    for _ in range(data.draw(st.integers(1, 20))):
        clip[data.draw(st.integers(0, len(clip) - 1))] = data.draw(st.integers(0, 255))
    piece = bytes(clip[: data.draw(st.integers(0, len(clip)))])
    try:
        outcome = pool.decode(piece, DecodeRequest(28, 28)).facts.frames > 0
    except CodecError as error:
        outcome = error.reason is not Reason.POISON
    assert outcome


def test_no_decoder_thread_or_socket_is_left() -> None:
    before = set(threading.enumerate())
    with pytest.raises(CodecError):
        SoftwareDecoder().decode(b"ffconcat version 1.0\nfile x\n", DecodeRequest(28, 28))
    assert set(threading.enumerate()) <= before
