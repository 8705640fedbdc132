"""Where a job's recordings are read, and above all where they are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lookout.jobs import SourceError, Sources
from lookout.net.fetch import UriFetcher
from tests.s3_server import BUCKET, S3Server

VIDEO = b"not looked into" * 100


class Site(BaseHTTPRequestHandler):
    """One recording, which can be changed and be away."""

    body = VIDEO
    away = 0
    asked = 0

    def do_GET(self) -> None:
        kind = type(self)
        kind.asked += 1
        if kind.away:
            kind.away -= 1
            self.send_error(503)
            return
        self.send_response(302 if self.path == "/elsewhere.mp4" else 200)
        self.send_header("location", "http://10.0.0.1/")
        length = len(kind.body) + (10 if self.path == "/broken-off.mp4" else 0)
        self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(kind.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, type[Site]]]:
    kind = type("Own", (Site,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://films.example:{server.server_port}", kind
    server.shutdown()
    server.server_close()
    thread.join()


def sources(limit: int = 1 << 20, pauses: list[float] | None = None, **more: Any) -> Sources:
    fetcher = UriFetcher(
        ("http",), ("*.example",), ("127.0.0.0/8",), limit=limit, resolver=lambda host, port: ["127.0.0.1"]
    )
    waits: list[float] = [] if pauses is None else pauses
    return Sources(fetcher=fetcher, pause=waits.append, **more)


def refusal(of: Sources, uri: str) -> str:
    """Why a URI is not read."""
    with pytest.raises(SourceError) as caught, of.open(uri):
        pass
    return str(caught.value)


def test_a_recording_is_fetched_whole_and_known_by_its_bytes(site: tuple[str, type[Site]]) -> None:
    address, kind = site
    uri = f"{address}/film.mp4"
    with sources().open(uri) as source:
        assert source.path.read_bytes() == VIDEO
        mark, copy = source.mark, source.path
        source.check()
    assert not copy.exists()
    with sources().open(uri, mark):
        pass
    kind.body = VIDEO[:-1] + b"!"  # as long as before
    with pytest.raises(SourceError, match="changed since the job was planned"), sources().open(uri, mark):
        pass


def test_a_host_that_is_away_is_tried_again_and_then_named(site: tuple[str, type[Site]]) -> None:
    address, kind = site
    pauses: list[float] = []
    kind.away = 2
    with sources(pauses=pauses).open(f"{address}/film.mp4") as source:
        assert source.path.read_bytes() == VIDEO
    assert len(pauses) == 2
    kind.away = 100
    assert "cannot be read now" in refusal(sources(), f"{address}/film.mp4")
    assert kind.asked == 6


def test_what_is_not_allowed_is_refused_by_name(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    address, kind = site
    assert "cannot be read now" in refusal(sources(), f"{address}/broken-off.mp4")
    asked = kind.asked
    assert "redirects are not followed" in refusal(sources(), f"{address}/elsewhere.mp4")
    assert "the limit of 100" in refusal(sources(limit=100), f"{address}/film.mp4")
    assert kind.asked == asked + 2
    port = address.rpartition(":")[2]
    assert "is not allowed" in refusal(sources(), f"http://127.0.0.1:{port}/film.mp4")
    secret = refusal(sources(), f"http://user:secret@films.example:{port}/film.mp4")
    assert "user name or password" in secret
    assert "secret" not in secret
    assert "LOOKOUT_URI_SCHEMES" in refusal(Sources(), f"{address}/film.mp4")
    assert "no URI" in refusal(sources(), "http://[::1/film.mp4")
    assert "in no store" in refusal(sources(), "s3://bucket/film.mp4")
    assert "in no store" in refusal(sources(stores=["s3://bucket/a"]), "s3://bucket/ab/film.mp4")
    assert "in no store" in refusal(sources(stores=["s3://bucket/a"]), "s3://bucket/a/../film.mp4")
    assert "zero character" in refusal(Sources([tmp_path]), f"file://{tmp_path}/a%00b")
    assert "cannot be read" in refusal(Sources([tmp_path]), f"{tmp_path}/{'9' * 5000}.mp4")


def test_a_full_disk_is_named(site: tuple[str, type[Site]], monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full, monkeypatch.context() as disk:
        disk.setattr("lookout.jobs.sources.open", lambda *_, **__: full, raising=False)
        why = refusal(sources(), f"{site[0]}/film.mp4")
    assert "cannot be stored (No space left on device)" in why


def test_objects_of_a_store_are_listed_and_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        folder = server.folder / BUCKET / "yard"
        folder.mkdir()
        for name in ("b.mp4", "a.mkv", "notes.txt"):
            (folder / name).write_bytes(VIDEO)
        own = sources(stores=[f"s3://{BUCKET}/yard"])
        listed = own.listed(f"s3://{BUCKET}/yard/")
        assert listed == [f"s3://{BUCKET}/yard/a.mkv", f"s3://{BUCKET}/yard/b.mp4"]
        with own.open(listed[0]) as source:
            assert source.path.read_bytes() == VIDEO
            mark = source.mark
        (folder / "a.mkv").write_bytes(VIDEO[::-1])
        with pytest.raises(SourceError, match="changed"), own.open(listed[0], mark):
            pass
        assert "is not there" in refusal(own, f"s3://{BUCKET}/yard/c.mp4")
        assert "more than 100 bytes" in refusal(sources(100, stores=[f"s3://{BUCKET}/yard"]), listed[1])
