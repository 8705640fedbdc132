"""Where strangers can read, and whether a secret stands there."""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from confluent_kafka import Message

from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.wire import all_topics
from tests.local_http import open_local

Place = tuple[str, bytes]


def forms(secret: str) -> set[bytes]:
    """A secret as it is, as a part of a URL, as base64 and as hexadecimal digits."""
    plain = secret.encode()
    return {
        plain,
        urllib.parse.quote(secret).encode(),
        base64.b64encode(plain).rstrip(b"="),
        plain.hex().encode(),
    }


def find(secrets: Mapping[str, str], places: Iterable[Place]) -> list[str]:
    """What stands where it must not: a line for each secret and place.

    Args:
        secrets: By name.
        places: Names of places with what can be read there.
    """
    wanted = {name: forms(secret) for name, secret in secrets.items()}
    return [
        f"{name} in {place}"
        for place, data in places
        for name, shapes in wanted.items()
        if any(shape in data for shape in shapes)
    ]


def files(folder: Path, names: str = "*.log") -> Iterator[Place]:
    """Logs, and pages."""
    for path in sorted(folder.rglob(names)):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()


def topics(bootstrap: str) -> Iterator[Place]:
    """Every record of every topic."""
    for topic in all_topics():
        with reading(bootstrap, [topic.name], Position(oldest=True)) as reader:
            yield topic.name, b"\n".join(map(_whole, reader.until_now()))


def _whole(message: Message) -> bytes:
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    headers = b" ".join(name.encode() + b"=" + _bytes(value) for name, value in pairs)
    return b" ".join((_bytes(message.key()), headers, _bytes(message.value())))


def _bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else b"" if part is None else str(part).encode("utf-8", "replace")


def pages(ports: Mapping[str, int]) -> Iterator[Place]:
    """Metrics and health of every service."""
    for name, port in ports.items():
        for page in ("metrics", "readyz", "livez"):
            try:
                with open_local(f"http://127.0.0.1:{port}/{page}", timeout=20.0) as answer:
                    yield f"{name}/{page}", answer.read()
            except urllib.error.HTTPError as error:
                yield f"{name}/{page}", error.read()
            except urllib.error.URLError:  # nobody listens: who counts on the page says so
                continue
