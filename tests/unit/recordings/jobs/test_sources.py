"""Where a job's recordings are read, and above all where they are not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import obstore
import pytest
from obstore.store import from_url

from lookout.errors import TransientError
from lookout.recordings.jobs import OpenSource, SourceError, Sources
from lookout.recordings.jobs.ranges import LEAST_BYTES, PART_TRIES, TRIES, AwayError, RangedRecording
from lookout.recordings.jobs.sources import FORGOTTEN_S, GIVEN_UP, _AbsentHosts
from lookout.runtime.net.fetch import UriFetcher
from lookout.video.files.ranged import PIECE
from tests.s3_server import BUCKET, S3Server

VIDEO = b"not looked into" * 100
LARGE = random.Random(1).randbytes(20 * PIECE)


class Site(BaseHTTPRequestHandler):
    """One recording, which can be changed and be away."""

    body = VIDEO
    away = 0
    asked = 0
    ranges: ClassVar[list[tuple[int, int]]]  # that were sent
    etag = ""
    lie = ""  # what Content-Range says instead
    breaks = 0  # answers that break off in the middle

    def do_GET(self) -> None:
        kind = type(self)
        kind.asked += 1
        if kind.away:
            kind.away -= 1
            self.send_error(503)
            return
        if kind.etag and self.headers.get("if-range", kind.etag) == kind.etag and "range" in self.headers:
            self._send_range(kind, self.headers["range"])
            return
        self.send_response(302 if self.path == "/elsewhere.mp4" else 200)
        self.send_header("location", "http://10.0.0.1/")
        length = len(kind.body) + (10 if self.path == "/broken-off.mp4" else 0)
        self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(kind.body)

    def _send_range(self, kind: type[Site], asked: str) -> None:
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        last = min(last, len(kind.body) - 1)
        body = kind.body[first : last + 1]
        self.send_response(206)
        self.send_header("etag", kind.etag)
        self.send_header("content-range", kind.lie or f"bytes {first}-{last}/{len(kind.body)}")
        self.send_header("content-length", str(len(body)))
        if kind.breaks and len(body) > 1:
            kind.breaks -= 1
            body = body[: len(body) // 2]
            self.close_connection = True
        kind.ranges.append((first, first + len(body)))  # before the headers, with which the client goes on
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, type[Site]]]:
    kind = type("Own", (Site,), {"ranges": []})
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


def contents(source: OpenSource) -> bytes:
    """All bytes of a recording."""
    if isinstance(source.data, Path):
        return source.data.read_bytes()
    with source.data.open() as file:
        return file.read()


def refusal(of: Sources, uri: str) -> str:
    """Why a URI is not read."""
    with pytest.raises(SourceError) as caught, of.open(uri):
        pass
    return str(caught.value)


def test_a_recording_is_fetched_whole_and_known_by_its_bytes(site: tuple[str, type[Site]]) -> None:
    address, kind = site
    uri = f"{address}/film.mp4"
    with sources().open(uri) as source:
        assert contents(source) == VIDEO
        mark, copy = source.mark, source.data
        assert isinstance(copy, Path)
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
        assert contents(source) == VIDEO
    assert len(pauses) == 2
    kind.away = 100
    assert "cannot be read now" in refusal(sources(), f"{address}/film.mp4")
    assert kind.asked == 7  # one of them whether it serves ranges


def test_what_is_not_allowed_is_refused_by_name(site: tuple[str, type[Site]], tmp_path: Path) -> None:
    address, kind = site
    assert "cannot be read now" in refusal(sources(), f"{address}/broken-off.mp4")
    asked = kind.asked
    assert "redirects are not followed" in refusal(sources(), f"{address}/elsewhere.mp4")
    assert "the limit of 100" in refusal(sources(limit=100), f"{address}/film.mp4")
    assert kind.asked == asked + 3
    port = address.rpartition(":")[2]
    assert "is not allowed" in refusal(sources(), f"http://127.0.0.1:{port}/film.mp4")
    secret = refusal(sources(), f"http://user:secret@films.example:{port}/film.mp4")
    assert "user name or password" in secret
    assert "secret" not in secret
    assert "LOOKOUT_URI_SCHEMES" in refusal(Sources(), f"{address}/film.mp4")
    assert "not a valid URI" in refusal(sources(), "http://[::1/film.mp4")
    assert "not in a store" in refusal(sources(), "s3://bucket/film.mp4")
    assert "not in a store" in refusal(sources(stores=["s3://bucket/a"]), "s3://bucket/ab/film.mp4")
    assert "not in a store" in refusal(sources(stores=["s3://bucket/a"]), "s3://bucket/a/../film.mp4")
    assert "null character" in refusal(Sources([tmp_path]), f"file://{tmp_path}/a%00b")
    assert "cannot be read" in refusal(Sources([tmp_path]), f"{tmp_path}/{'9' * 5000}.mp4")


def test_only_what_is_asked_for_is_fetched_where_a_host_serves_ranges(site: tuple[str, type[Site]]) -> None:
    address, kind = site
    kind.etag, kind.body = '"one"', LARGE
    uri = f"{address}/film.mp4"
    with sources(limit=len(LARGE) // 2).open(uri) as source:
        assert isinstance(source.data, RangedRecording)
        assert source.data.read_at(5, len(LARGE) // 2) == LARGE[len(LARGE) // 2 :][:5]
        assert sum(stop - start for start, stop in kind.ranges) == 1 + PIECE
        with source.data.open() as file, pytest.raises(SourceError, match="LOOKOUT_FETCH_BYTES"):
            file.read()
        source.check()  # another part: its bytes are counted from 0
        assert source.data.read_at(5, 0) == LARGE[:5]
        mark = source.mark
    with sources().open(uri, mark) as source:
        assert contents(source) == LARGE
    kind.etag = '"two"'
    with pytest.raises(SourceError, match="changed since the job was planned"), sources().open(uri, mark):
        pass


def test_a_recording_that_changes_between_two_ranges_is_refused_by_name(
    site: tuple[str, type[Site]],
) -> None:
    address, kind = site
    kind.etag, kind.body = '"one"', LARGE
    with sources().open(f"{address}/film.mp4") as source:
        assert isinstance(source.data, RangedRecording)
        source.data.read_at(1, 0)
        kind.etag = '"two"'
        with pytest.raises(SourceError, match=r"film\.mp4: the recording changed while it was read"):
            source.data.read_at(1, len(LARGE) // 2)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("bytes 0-16383/{size}", "did not answer with the requested bytes"),
        ("bytes 32768-49151/7", "did not answer with the requested bytes"),
        ("bytes 32768-49151/99999999", "the recording changed while it was read"),
        ("nonsense", "did not answer with the requested bytes"),
    ],
)
def test_a_host_that_lies_about_a_range_is_refused_by_name(
    site: tuple[str, type[Site]], lie: str, why: str
) -> None:
    address, kind = site
    kind.etag, kind.body = '"one"', LARGE
    with sources().open(f"{address}/film.mp4") as source:
        assert isinstance(source.data, RangedRecording)
        kind.lie = lie.format(size=len(LARGE))
        with pytest.raises(SourceError, match=why):
            source.data.read_at(1, 2 * PIECE)


def test_a_broken_connection_goes_on_where_it_broke(site: tuple[str, type[Site]]) -> None:
    address, kind = site
    kind.etag, kind.body, kind.breaks = '"one"', LARGE, 3
    pauses: list[float] = []
    with sources(pauses=pauses).open(f"{address}/film.mp4") as source:
        assert contents(source) == LARGE
        assert isinstance(source.data, RangedRecording)
    assert len(pauses) == 3
    assert sum(stop - start for start, stop in kind.ranges) == 1 + len(LARGE)  # nothing comes twice


@pytest.mark.parametrize("given", [1, LEAST_BYTES + 1])
def test_a_host_that_breaks_every_connection_is_given_up(given: int) -> None:
    """By a byte a connection a job would last for days; by many, for as long as its host likes."""

    class Trickle:
        size, version, calls = 1 << 30, "v", 0

        def begin(self) -> bool:
            return True

        def read(self, start: int, stop: int, take: Callable[[bytes], object]) -> None:
            self.calls += 1
            take(b"x" * given)
            raise TransientError("the connection broke")

    trickle = Trickle()
    recording = RangedRecording("film", trickle, 1 << 40, lambda _: None)
    with pytest.raises(SourceError, match="cannot be read now"):
        recording._fetched(0, 1 << 30)
    assert trickle.calls == (TRIES if given == 1 else PART_TRIES)


def test_a_host_that_sends_a_byte_now_and_then_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read is answered in time, and the whole recording would take for ever."""
    monkeypatch.setattr("lookout.runtime.net.fetch.QUIET_S", 0.3)
    ended = threading.Event()

    class Drip(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(1 << 20))
            self.end_headers()
            with suppress(OSError):
                while not ended.wait(0.05):
                    self.wfile.write(b"x")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Drip)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        pauses: list[float] = []
        address = f"http://films.example:{server.server_port}/film.mp4"
        assert "bytes in" in refusal(sources(pauses=pauses), address)
        assert len(pauses) == TRIES - 1
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_host_that_is_away_is_not_asked_for_each_of_a_jobs_recordings() -> None:
    """Nor does it become absent for another tenant, whose recordings of it may be there."""
    pauses: list[float] = []
    of = sources(pauses=pauses)
    for asker in ("north", "south"):
        answers = []
        for number in range(100):
            with pytest.raises(AwayError) as caught, of.open(f"http://a.example:1/{number}", asker=asker):
                pass
            answers.append(str(caught.value))
        assert [("is not read" in answer) for answer in answers] == [False] * GIVEN_UP + [True] * 95
    assert len(pauses) == 2 * GIVEN_UP * (TRIES - 1)


def test_a_host_that_was_away_is_asked_again() -> None:
    now = 0.0
    hosts = _AbsentHosts(lambda: now)
    for _ in range(GIVEN_UP):
        hosts.check("http://a/x", ("north", "a"))
        hosts.add(("north", "a"))
    with pytest.raises(AwayError, match="again in 600 s"):
        hosts.check("http://a/x", ("north", "a"))
    now = FORGOTTEN_S
    hosts.check("http://a/x", ("north", "a"))


@pytest.mark.parametrize("uri", ["az://x/y", "gs://x/y", "s3://bucket/other.mp4"])
def test_a_store_that_is_not_allowed_or_cannot_be_opened_is_named(uri: str) -> None:
    with pytest.raises(SourceError, match="not in a store that may be read"), sources().open(uri):
        pass
    scheme = uri.partition(":")[0]
    if scheme != "s3":  # allowed, and without the credentials that it needs
        with pytest.raises(SourceError), sources(stores=[f"{scheme}://x"]).open(uri):
            pass


def test_a_full_disk_is_named_and_tried_again(
    site: tuple[str, type[Site]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, uri = sources(), f"{site[0]}/film.mp4"
    with open("/dev/full", "wb", buffering=0) as full, monkeypatch.context() as disk:
        disk.setattr("lookout.recordings.jobs.sources.open", lambda *_, **__: full, raising=False)
        with pytest.raises(TransientError) as error, own.open(uri):
            pass
    assert str(error.value).startswith(f"{uri} cannot be stored in ")
    assert "(No space left on device)" in str(error.value)
    with own.open(uri) as source:
        assert contents(source) == VIDEO


@pytest.mark.long
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
            assert contents(source) == VIDEO
            mark = source.mark
        (folder / "a.mkv").write_bytes(VIDEO[::-1])
        with pytest.raises(SourceError, match="changed"), own.open(listed[0], mark):
            pass
        assert "does not exist" in refusal(own, f"s3://{BUCKET}/yard/c.mp4")
        assert "more than 100 bytes" in refusal(sources(100, stores=[f"s3://{BUCKET}/yard"]), listed[1])


@pytest.mark.long
def test_an_object_that_has_a_version_is_read_in_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = from_url(f"s3://{BUCKET}")
        obstore.put(store, "yard/a.mp4", LARGE)
        own = sources(2 * PIECE, stores=[f"s3://{BUCKET}/yard"])
        with own.open(f"s3://{BUCKET}/yard/a.mp4") as source:
            assert isinstance(source.data, RangedRecording)
            assert source.data.read_at(9, len(LARGE) - 9) == LARGE[-9:]
            with pytest.raises(SourceError, match=f"more than {2 * PIECE} bytes"):
                contents(source)
            obstore.put(store, "yard/a.mp4", LARGE[::-1])
            source.check()
            with pytest.raises(SourceError, match="the object changed while it was read"):
                source.data.read_at(9, 9 * PIECE)
        with pytest.raises(SourceError, match="changed since the job"):
            own.open(source.uri, source.mark).__enter__()
