"""The durable tier in a real S3 server: answers from it alone, its death, and erased bytes in no object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lookout.past.chapters.durable import DurableTier, Uploader
from lookout.past.memory import HistoryError
from lookout.past.memory.chapters import ChapterFolder
from lookout.services.recall.asking import Asker
from tests.chapters_world import (
    LITTLE,
    QUESTION,
    World,
    engine,
    facts,
    fill,
    folder,
    holding,
    in_one_process,
    rows_of,
)
from tests.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
URL = f"s3://{BUCKET}/fleet"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def chapters(tmp_path: Path) -> ChapterFolder:
    chapters = folder(tmp_path / "memory")
    for number in range(2):
        fill(chapters, range(number * 5, number * 5 + 5), seed=number)
        chapters.seal("gate")
    return chapters


def from_tier(tmp_path: Path) -> object:
    with ExitStack() as stack:
        sources = World(tmp_path, None, stack).sources(durable=DurableTier(URL))
        asked = Asker(engine(), sources, model_digest="m1", retrieval=LITTLE).ask("gate", QUESTION)
        return facts(asked.answer)


def test_chapters_answer_from_s3_alone_and_erased_bytes_are_in_no_object(
    server: S3Server, chapters: ChapterFolder, tmp_path: Path
) -> None:
    uploader = Uploader(DurableTier(URL), chapters)
    uploader.round()
    assert (uploader.uploaded, uploader.failed) == (2, 0)
    assert from_tier(tmp_path) == facts(in_one_process(chapters))

    (first, second) = chapters.chapters("gate")
    begin, end = first.begin_us + 4_000_000, second.begin_us + 1
    lost = rows_of(chapters, begin, end)
    assert holding(server.folder, lost[:1])
    # A pod that never held the chapters erases them where they are.
    frames = DurableTier(URL).erase("gate", begin, end)
    assert holding(server.folder, lost) == []
    assert chapters.erase("gate", begin, end) == frames
    assert from_tier(tmp_path) == facts(in_one_process(chapters))
    DurableTier(URL).erase("gate", 0, 1 << 61)
    assert DurableTier(URL).stored() == []
    assert [path for path in server.folder.rglob("*.bin") if path.is_file()] == []


def test_a_server_that_dies_is_a_failed_round_and_the_next_one_stores(
    server: S3Server, chapters: ChapterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    tier, sent = DurableTier(URL), []
    put = obstore.put

    def dying(*arguments: object, **more: object) -> object:
        sent.append(1)
        if len(sent) == 3:
            server.kill()
        return put(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setenv("AWS_MAX_RETRIES", "1")
    monkeypatch.setattr(obstore, "put", dying)
    uploader = Uploader(DurableTier(URL), chapters)
    uploader.round()
    assert (uploader.uploaded, uploader.failed) == (0, 1)
    monkeypatch.undo()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    assert tier.stored() == []
    with pytest.raises(HistoryError, match="is incomplete"):
        tier.erase("gate", 0, 1 << 61)
    uploader.round()
    assert uploader.uploaded == 2
    assert from_tier(tmp_path) == facts(in_one_process(chapters))
