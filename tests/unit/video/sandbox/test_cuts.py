"""Files cut in the sandbox: the same pieces, whatever happens to the process that cuts."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest

from lookout.video.sandbox import SandboxPool
from lookout.video.sandbox.cuts import MOST_OPEN, Cuts
from lookout.video.sandbox.pool import _Job, _opened
from lookout.video.segments import CodecError, Reason, cut
from lookout.video.segments.types import CutRequest, Segment
from tests.unit.video.segments.clips import encode


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool() as pool:
        yield pool


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("films") / "film.mp4"
    path.write_bytes(encode(fps=10, frames=80, gop=10, speed=1))
    return path


def all_of(cuts: Cuts, path: Path, limit: int) -> Iterator[tuple[Segment, ...]]:
    request = CutRequest(str(path), 1.0, 1 << 20, 0, limit)
    while pieces := cuts.pieces(request, path.open("rb")):
        yield pieces
        request = CutRequest(str(path), 1.0, 1 << 20, request.first + len(pieces), limit)


def test_the_sandbox_cuts_what_is_cut_here(pool: SandboxPool, film: Path) -> None:
    here = list(cut(film, target_s=1.0))
    assert len(here) == 8
    assert list(pool.cut(film, target_s=1.0)) == here


@pytest.mark.parametrize("limit", [1, 9_000, 1 << 30])
def test_answers_hold_as_many_pieces_as_were_asked_for(film: Path, limit: int) -> None:
    here = list(cut(film, target_s=1.0))
    answers = list(all_of(Cuts(), film, limit))
    assert [piece for pieces in answers for piece in pieces] == here
    assert all(sum(len(piece.data) for piece in pieces[:-1]) < limit for pieces in answers)
    assert (len(answers) == 1) == (limit == 1 << 30)


def test_a_file_that_breaks_off_says_so_behind_its_pieces(pool: SandboxPool, tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    whole = encode("fmp4", fps=10, frames=80, gop=10, speed=1)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    here = list(cut(path, target_s=1.0))
    pieces = pool.cut(path, target_s=1.0)
    assert [piece for _, piece in zip(here, pieces, strict=False)] == here
    with pytest.raises(CodecError, match=r"breaks off: the container lists 60 frames, but has only 51"):
        next(pieces)
    with path.open("rb") as pipe, pytest.raises(CodecError, match="breaks off"):
        list(pool.cut_stream(pipe, target_s=1.0))


@pytest.mark.slow
def test_a_cut_goes_on_in_another_process(pool: SandboxPool, film: Path) -> None:
    """Killed between two answers: its successor reads on from the same piece."""
    request = CutRequest(str(film), 1.0, 1 << 20, 0, 1)
    found: list[Segment] = []
    while pieces := pool._run(_Job(request, opened=partial(_opened, film))):
        assert isinstance(pieces, tuple)
        found += pieces
        request = CutRequest(str(film), 1.0, 1 << 20, len(found), 1)
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)
    assert found == list(cut(film, target_s=1.0))


@pytest.mark.slow
def test_more_files_than_stay_open_take_turns(film: Path, tmp_path: Path) -> None:
    here = list(cut(film, target_s=1.0))
    links = [tmp_path / f"{number}.mp4" for number in range(MOST_OPEN + 3)]
    for link in links:
        link.symlink_to(film)
    cuts = Cuts()
    for at, rounds in enumerate(zip_longest(*(all_of(cuts, link, 1) for link in links))):
        assert all(pieces == (here[at],) for pieces in rounds)


def until_it_fails(pieces: Iterator[Segment]) -> tuple[list[Segment], CodecError]:
    found: list[Segment] = []
    with pytest.raises(CodecError) as caught:
        found.extend(pieces)
    return found, caught.value


def test_what_is_wrong_is_said_in_its_place(pool: SandboxPool, tmp_path: Path) -> None:
    """The pieces before it come first."""
    path = tmp_path / "late.mp4"
    still, moving = (
        encode("ts", fps=10, frames=20, gop=10, speed=5, size=(512, 384), options={"qp": qp})
        for qp in ("40", "5")
    )
    path.write_bytes(still + moving)
    least = max(len(piece.data) for piece in cut(io.BytesIO(still), target_s=1.0))
    here, why = until_it_fails(cut(path, target_s=1.0, max_bytes=least))
    there, reason = until_it_fails(pool.cut(path, target_s=1.0, max_bytes=least))
    assert len(here) == 2
    assert there == here
    assert (reason.reason, reason.detail) == (Reason.BYTES, why.detail)


@pytest.mark.parametrize(("name", "why"), [("none.mp4", "No such file"), (".", "Is a directory")])
def test_files_that_cannot_be_read_are_one_clear_error(
    pool: SandboxPool, tmp_path: Path, name: str, why: str
) -> None:
    _, error = until_it_fails(pool.cut(tmp_path / name))
    assert error.reason is Reason.UNREADABLE
    assert why in error.detail
