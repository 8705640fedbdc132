"""A film that people send becomes segments that end now."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lookout.services.gateway import films
from lookout.services.gateway.problems import ProblemError
from lookout.video.segments import cut
from lookout.wire import MAX_SEGMENT_BYTES, headers
from tests.numbered import clip


class Sent:
    """What was sent, in order."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.facts: list[dict[str, str]] = []

    def __call__(self, data: bytes, more: headers.Headers) -> None:
        self.data.append(data)
        self.facts.append({name: value.decode() for name, value in more})


def test_a_film_is_cut_as_files_are_and_ends_now(tmp_path: Path) -> None:
    (path := tmp_path / "film").write_bytes(clip(200))
    sent, before_ms = Sent(), time.time() * 1000
    film = films.publish(path, "gate", {"lookout-tenant": "north"}, sent, 0)
    pieces = list(cut(path, max_bytes=MAX_SEGMENT_BYTES))
    assert sent.data == [piece.data for piece in pieces]
    assert len(pieces) == film.segments > 2
    begin_ms = film.begin.ToMilliseconds()
    assert [int(each[headers.CAPTURED_AT]) for each in sent.facts] == [
        begin_ms + piece.start_us // 1000 for piece in pieces
    ]
    assert [each.get(headers.LAST) for each in sent.facts] == [None] * (len(pieces) - 1) + ["1"]
    assert {each["lookout-tenant"] for each in sent.facts} == {"north"}
    assert before_ms - 1 <= film.end.ToMilliseconds() <= time.time() * 1000 + 1


@pytest.mark.parametrize("data", [b"no film", clip(30)[:700]], ids=["text", "cut off"])
def test_what_is_no_film_sends_nothing(tmp_path: Path, data: bytes) -> None:
    (path := tmp_path / "film").write_bytes(data)
    sent = Sent()
    with pytest.raises(ProblemError, match=r"the film cannot be read .*: nothing was sent"):
        films.publish(path, "gate", {}, sent, 0)
    assert not sent.data


@pytest.mark.parametrize(("chunks", "status"), [([], 400), ([b"x" * 6, b"x" * 5], 413)])
def test_a_film_has_bytes_and_not_too_many(
    chunks: list[bytes], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    monkeypatch.setattr(films, "FILM_BYTES", 10)
    with pytest.raises(ProblemError) as refused:
        asyncio.run(films.receive(body(), io.BytesIO()))
    assert refused.value.status == status
