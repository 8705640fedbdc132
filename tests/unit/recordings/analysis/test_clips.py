"""Clips of answers: which ranges, under which names, and what cannot be cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout.recordings.analysis import Analysis, AnalysisError, Part, PartAnswer, PartResult, write_clips
from lookout.recordings.analysis.clips import CLIP_S, clip_ranges, recording_stem
from lookout.recordings.analysis.results import answer_of
from lookout.video.files import VideoReader
from tests.unit.video.segments.clips import encode

QUESTIONS = ("Is a person in view?", "Is a vehicle in view?")


def analysis(source: str, spans: list[tuple[float, float]], answers: list[tuple[float, ...]]) -> Analysis:
    """An analysis as a model might give it: p(yes) of every question in every part."""
    parts = tuple(
        PartResult(
            Part(number, 4 * number, 4 * number + 4, *span),
            4,
            tuple(
                PartAnswer(question, p_yes, None, ((span[0] + 0.5, 0.7),))
                for question, p_yes in zip(QUESTIONS, chances, strict=True)
            ),
        )
        for number, (span, chances) in enumerate(zip(spans, answers, strict=True))
    )
    own = tuple(answer_of(text, place, parts) for place, text in enumerate(QUESTIONS))
    return Analysis(source, spans[-1][1], 40, QUESTIONS, own, parts)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "große Halle.mp4"
    path.write_bytes(encode("mp4", frames=60, gop=10, bframes=2, speed=1))
    return path


@pytest.mark.slow
def test_each_range_that_says_yes_is_a_clip_and_names_sort_by_time(film: Path, tmp_path: Path) -> None:
    spans = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0)]
    found = analysis(str(film), spans, [(0.9, 0.8), (0.1, 0.1), (0.6, 0.2)])
    clips = write_clips(found, tmp_path / "clips")
    assert [(clip.moment.start_s, clip.moment.questions, clip.moment.p_yes) for clip in clips] == [
        (0.0, QUESTIONS, 0.9),
        (4.0, QUESTIONS[:1], 0.6),
    ]
    names = sorted(path.name for path in (tmp_path / "clips").iterdir())
    assert names == [clip.path.name for clip in clips if clip.path is not None]
    assert names == [
        "große Halle_00-00-00.000_00-00-02.000.mp4",
        "große Halle_00-00-04.000_00-00-06.000.mp4",
    ]
    with VideoReader(film) as reader:
        for clip in clips:
            assert clip.path is not None
            with VideoReader(clip.path) as shown:
                assert (shown[0] == reader[round(10 * clip.start_s)]).all()
    before = {path.name: path.read_bytes() for path in (tmp_path / "clips").iterdir()}
    assert write_clips(found, tmp_path / "clips", sandbox=True) == clips
    assert {path.name: path.read_bytes() for path in (tmp_path / "clips").iterdir()} == before


def test_a_long_range_is_the_minute_around_its_strongest_moment() -> None:
    spans = [(30.0 * i, 30.0 * i + 30) for i in range(10)]
    chances = [(0.6 + 0.03 * (i == 4), 0.1) for i in range(10)]
    (own,) = clip_ranges(analysis("a.mp4", spans, chances))
    assert (own.start_s, own.end_s) == (120.5 - CLIP_S / 2, 120.5 + CLIP_S / 2)
    (own,) = clip_ranges(analysis("a.mp4", spans, [(0.9 if i == 0 else 0.6, 0.1) for i in range(10)]))
    assert (own.start_s, own.end_s) == (0.0, CLIP_S)


def test_no_yes_no_clip_and_the_folder_is_there(film: Path, tmp_path: Path) -> None:
    found = analysis(str(film), [(0.0, 6.0)], [(0.5, 0.1)])
    assert write_clips(found, tmp_path / "clips") == []
    assert list((tmp_path / "clips").iterdir()) == []


def test_what_cannot_be_cut_is_named_and_the_others_are_there(film: Path, tmp_path: Path) -> None:
    found = analysis(str(film), [(0.0, 2.0), (2.0, 4.0), (70.0, 80.0)], [(0.9, 0.1), (0.1, 0.1), (0.9, 0.1)])
    good, bad = write_clips(found, tmp_path / "clips")
    assert good.path is not None
    assert (bad.path, bad.moment.start_s) == (None, 70.0)
    assert f"no clip of {film} can be cut" in bad.reason
    assert bad.to_dict()["path"] is None
    (tmp_path / "film").write_bytes(b"")
    with pytest.raises(AnalysisError, match=r"clips cannot be written to .*film"):
        write_clips(found, tmp_path / "film")


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        ("/films/yard.mp4", "yard"),
        ("https://example.com/a/b%2Fc.mp4?token=x", "c"),
        ("https://example.com", "recording"),
        ("ä" * 300 + ".mp4", "ä" * 75),
        ("a\n\x1b.mp4", "a\\x0a\\x1b"),
    ],
)
def test_names_fit_a_file_system(source: str, stem: str) -> None:
    assert recording_stem(source) == stem
