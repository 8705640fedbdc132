"""Segments by URI: what is fetched, and above all what is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lookout.errors import BadRecordError, TransientError
from lookout.runtime.net.fetch import UriFetcher, uri_of
from lookout.runtime.net.ranges import UriRanges


class Site(BaseHTTPRequestHandler):
    """A small web site that counts its visitors."""

    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("host")))
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("location", "/segment")
            self.end_headers()
            return
        if self.path == "/busy":
            self.send_error(503)
            return
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(600):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
            except OSError:
                pass
            return
        if self.path == "/slow-headers":
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
                for _ in range(600):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
            except OSError:
                pass
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        body = b"x" * (5000 if self.path == "/large" else 100)
        if self.path == "/gzip":
            self.send_header("content-encoding", "gzip")
        if self.path != "/large":
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def site() -> Iterator[tuple[int, list[tuple[str, str | None]]]]:
    """The site's port and what was asked of it."""
    seen: list[tuple[str, str | None]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Site,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port, seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetcher(*addresses: str, networks: tuple[str, ...] = ("127.0.0.0/8",), **more: Any) -> UriFetcher:
    """Fetches from *.example, which resolves to the addresses given."""
    found = list(addresses) or ["127.0.0.1"]
    return UriFetcher(
        ("http", "https"),
        ("*.example",),
        networks,
        resolver=lambda host, port: found,
        **{"limit": 1000, **more},
    )


def reason(of: UriFetcher, uri: str) -> str:
    """Why a URI is not fetched."""
    with pytest.raises(BadRecordError) as caught:
        of.fetch(uri)
    return caught.value.reason


def test_a_segment_is_fetched_at_the_address_that_was_checked() -> None:
    with site() as (port, seen):
        assert fetcher().fetch(f"http://cam.example:{port}/segment") == b"x" * 100
        assert seen == [("/segment", f"cam.example:{port}")]


def test_redirects_sizes_and_failures() -> None:
    with site() as (port, seen):
        base = f"http://cam.example:{port}"
        assert reason(fetcher(), f"{base}/redirect") == "uri-refused"
        assert reason(fetcher(), f"{base}/missing") == "uri-status"
        assert reason(fetcher(), f"{base}/large") == "too-many-bytes"
        assert reason(fetcher(limit=50), f"{base}/segment") == "too-many-bytes"
        assert [path for path, _ in seen] == ["/redirect", "/missing", "/large", "/segment"]
        assert reason(fetcher(), f"{base}/gzip") == "uri-encoding"
        seen.clear()
        with pytest.raises(TransientError, match="503"):
            fetcher().fetch(f"{base}/busy")
        assert len(seen) == 1  # the worker tries again


@pytest.mark.parametrize("path", ["/slow", "/slow-headers"])
def test_a_fetch_ends_in_time_however_slowly_bytes_come(path: str) -> None:
    with site() as (port, _), pytest.raises(TransientError, match="ReadTimeout"):
        fetcher(timeout_s=0.5).fetch(f"http://cam.example:{port}{path}")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
     "224.0.0.1", "::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",
     "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1",
     "2001:0:53aa:64c:0:fbff:80ff:fffe"],
)  # fmt: skip
def test_no_private_address_is_reached(address: str) -> None:
    assert reason(fetcher(address, networks=()), "http://cam.example/segment") == "uri-refused"
    assert reason(fetcher("93.184.215.14", address, networks=()), "http://cam.example/") == "uri-refused"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("file:///etc/passwd", "uri-refused"),
        ("ftp://cam.example/a", "uri-refused"),
        ("http://evil.test/a", "uri-refused"),
        ("http://example/a", "uri-refused"),
        ("http://cam.example.evil.test/a", "uri-refused"),
        ("http://user:secret@cam.example/a", "uri-refused"),
        ("http://127.0.0.1/a", "uri-refused"),
        ("/etc/passwd", "uri-refused"),
        ("http://[::1", "bad-uri"),
    ],
)
def test_only_what_is_allowed(uri: str, why: str) -> None:
    assert reason(fetcher(), uri) == why


def test_nothing_is_allowed_by_default() -> None:
    assert reason(UriFetcher(("https",), ()), "https://cam.example/a") == "uri-refused"


def test_a_host_that_does_not_resolve_is_away() -> None:
    def nowhere(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    away = UriFetcher(("http",), ("*.example",), resolver=nowhere)
    with pytest.raises(TransientError, match="does not resolve"):
        away.fetch("http://cam.example/a")


def test_a_name_that_changes_after_it_was_checked_leads_nowhere_else() -> None:
    """It is looked up once for a fetch, and once for all ranges of a recording."""
    with site() as (port, seen):
        asked = []

        def rebinding(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) % 2 else ["127.0.0.2"]

        of = UriFetcher(("http",), ("*.example",), ("127.0.0.1/32",), resolver=rebinding)
        assert of.fetch(f"http://cam.example:{port}/segment") == b"x" * 100
        with pytest.raises(BadRecordError, match=r"resolves to 127\.0\.0\.2"):
            of.fetch(f"http://cam.example:{port}/segment")
        assert len(seen) == 1
        with UriRanges(of, f"http://cam.example:{port}/segment") as ranges:
            for _ in range(3):
                assert not ranges.begin()  # the site serves no ranges; each attempt is a request
        assert (len(asked), len(seen)) == (3, 4)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "8.8.8.8"],
)
def test_an_address_is_no_host_unless_it_is_named(host: str) -> None:
    anything = UriFetcher(("http",), ("*",), ("127.0.0.0/8",), resolver=lambda *_: ["127.0.0.1"])
    assert reason(anything, f"http://{host}/a") == "uri-refused"
    with site() as (port, _):
        named = UriFetcher(("http",), ("127.0.0.1",), ("127.0.0.0/8",))
        assert named.fetch(f"http://127.0.0.1:{port}/a") == b"x" * 100


def test_an_address_in_disguise_may_be_allowed_by_its_network() -> None:
    with site() as (port, _):
        assert fetcher("127.0.0.1", "::ffff:127.0.0.1").fetch(f"http://cam.example:{port}/a") == b"x" * 100


def test_a_uri_list_must_hold_one_uri() -> None:
    assert uri_of(b"# a comment\r\nhttps://cam.example/a.ts\r\n") == "https://cam.example/a.ts"
    for value in (
        b"",
        b"# only a comment\r\n",
        b"https://a.example/\nhttps://b.example/\n",
        "https://ä".encode(),
    ):
        with pytest.raises(BadRecordError) as caught:
            uri_of(value)
        assert caught.value.reason == "bad-uri"
