"""Recordings behind URLs whose servers are hostile or broken: one plain error, within a bound."""

from __future__ import annotations

import contextlib
import errno
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lookout.video.files import UrlSource
from lookout.video.files.source import BytesSource, source_of
from lookout.video.sandbox.opening import download
from lookout.video.segments import CodecError

Reply = Callable[[Any, threading.Event], None]


@contextmanager
def served(reply: Reply, received: Callable[[bytes], object] = len) -> Iterator[str]:
    """The address of a server that answers by `reply` (connection, stop); `received` is told each request."""
    stop = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            received(self.request.recv(65536))
            with contextlib.suppress(OSError):  # the client has gone
                reply(self.request, stop)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/clip.mp4"
        finally:
            stop.set()
            server.shutdown()
            thread.join()


def _head(total: str, length: int = 4) -> bytes:
    return (
        f"HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\n"
        f"content-range: bytes 0-{length - 1}/{total}\r\n\r\n"
    ).encode()


def announces(total: str) -> Reply:
    return lambda connection, stop: connection.sendall(_head(total) + b"abcd")


def drips(head: bytes) -> Reply:
    """Sends `head`, then a byte now and then for as long as anybody listens."""

    def reply(connection: Any, stop: threading.Event) -> None:
        connection.sendall(head)
        while not stop.wait(0.05):
            connection.sendall(b"x")

    return reply


def redirects(connection: Any, stop: threading.Event) -> None:
    head = b"HTTP/1.1 302 Found\r\nlocation: /again.mp4\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    connection.sendall(head)


def endless(connection: Any, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-3/4\r\n\r\n")
    while not stop.is_set():
        connection.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (announces("1000000000000000"), "announces 1000000000000000 bytes; the limit is 1099511627776"),
        (announces("9" * 5000), "announces 99999999999999999999 bytes"),
        (drips(b"HTTP/1.1 206 Partial"), "took longer than 0.5 s"),
        (drips(_head("1000000", 1 << 16)), "took longer than 0.5 s"),
        (redirects, "redirects"),
        (endless, "or more arrived, but only 65536 were requested from byte 0"),
    ],
    ids=["announced size", "announced digits", "head drips", "body drips", "redirect loop", "endless body"],
)
def test_a_hostile_server_is_one_plain_error(reply: Reply, words: str) -> None:
    with served(reply) as url:
        source = UrlSource(url, piece_s=0.5 if "longer" in words else 60.0, piece=1 << 16)
        with pytest.raises(CodecError, match=f"{url} cannot be read .*{words}"):
            source.size  # noqa: B018 (reads the first piece)
        source.close()


def test_a_password_in_an_address_is_for_its_server_alone() -> None:
    requests = []

    def asks_for_it(connection: Any, stop: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    with served(asks_for_it, requests.append) as url:
        source = UrlSource(url.replace("//", "//guard:canary@") + "?signature=canary")
        with pytest.raises(CodecError) as raised:
            source.size  # noqa: B018
        source.close()
    assert b"?signature=canary" in requests[0]
    assert b"authorization: basic" in requests[0].lower()
    assert source.name == url
    assert "canary" not in str(raised.value)


def test_a_recording_larger_than_the_disk_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with served(announces(str(1 << 50))) as url:
        source = UrlSource(url, piece=4, longest=1 << 60)
        with pytest.raises(CodecError, match=r"cannot be stored \(it has 1125899906842624 bytes"):
            download(source, str(tmp_path / "file"))
        assert source.fetched == 4
        source.close()


def test_a_disk_that_is_full_half_way_is_a_plain_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with served(announces("4")) as url:
        source = UrlSource(url, piece=4)
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(CodecError, match=r"cannot be stored .*No space left on device"):
            download(source, str(tmp_path / "file"))
        monkeypatch.undo()
        source.close()


def test_an_address_of_another_kind_is_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CodecError, match=r"ftp://host/a\.mp4 is not supported: a recording is a file or an http"
    ):
        source_of("ftp://user:secret@host/a.mp4")
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:/a.mp4").write_bytes(b"footage")
    assert source_of("s3://a.mp4").name.endswith("a.mp4")  # a file that is there is a file


def test_a_file_s_name_in_bytes_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    path.write_bytes(b"footage")
    with pytest.raises(CodecError, match=r"the name of a file: give the name as text \('.*film.mp4'\)"):
        source_of(os.fsencode(path))
    assert isinstance(source_of(b"nowhere.mp4"), BytesSource)
