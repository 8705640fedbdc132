"""The page of recordings in a real browser: a click plays the moment, also where the footage is not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from lookout.cli.report import recording
from lookout.cli.report.recording import write_recording_page
from tests.browser import CHROMIUM, Browser, browser
from tests.eventually import eventually
from tests.unit.recordings.analysis.test_clips import analysis
from tests.unit.video.segments.clips import encode

SPANS = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0)]
PLAYER = "document.querySelector('video')"


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "große Halle #1.mp4"
    path.write_bytes(encode("mp4", frames=60, gop=10, bframes=2, speed=1))
    return path


def written(film: Path, page: Path) -> str:
    """A page of a recording whose first and last two seconds say yes."""
    found = analysis(str(film), SPANS, [(0.9, 0.1), (0.1, 0.1), (0.8, 0.1)])
    write_recording_page(page, [found], sandbox=False)
    return page.read_text()


def test_clips_are_in_the_page_while_they_are_small(
    film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "pages" / "page.html"
    text = written(film, page)
    assert 'data-film="../gro%C3%9Fe%20Halle%20%231.mp4"' in text
    assert f'<h2 title="{film}">{film.name}</h2>' in text
    assert "clips in this page show 2 of 2 ranges that say yes" in text
    assert text.count('"type":"video/mp4"') == 2
    monkeypatch.setattr(recording, "PAGE_CLIPS", len(film.read_bytes()) // 2)
    assert "clips in this page show 1 of 2 ranges" in written(film, page)
    monkeypatch.setattr(recording, "PAGE_CLIPS", 0)
    assert "clips in this page show 0 of 2 ranges" in written(film, page)
    film.unlink()
    gone = written(film, page)
    assert 'data-film=""' in gone
    assert "clips in this page" not in gone


def test_a_page_shows_times_by_the_clock(film: Path, tmp_path: Path) -> None:
    found = analysis(str(film), SPANS, [(0.9, 0.1), (0.1, 0.1), (0.8, 0.1)])
    begins = datetime(2026, 5, 1, 23, 59, 58, tzinfo=timezone(timedelta(hours=2)))
    page = tmp_path / "page.html"
    write_recording_page(
        page, [dataclasses.replace(found, begins=begins, begins_from="given")], sandbox=False
    )
    text = page.read_text()
    assert "begins 2026-05-01 23:59:58 +0200 (given)" in text
    assert "<span>0:00.0<br>23:59:58</span>" in text
    assert "0:04.0 to 0:06.0 (2026-05-02 00:00:02 to 2026-05-02 00:00:04)</button>" in text


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium (apt install chromium)")
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def at(chromium: Browser) -> float:
    """Where the player is, once it has picture data."""
    eventually(lambda: chromium.evaluate(f"{PLAYER}.readyState >= 2 && !{PLAYER}.seeking"))
    return float(chromium.evaluate(f"{PLAYER}.currentTime"))


def still(chromium: Browser) -> None:
    """Let a click seek, not play: then its place can be read."""
    chromium.evaluate("HTMLMediaElement.prototype.play = () => Promise.resolve()")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_click_plays_the_moment(chromium: Browser, film: Path, tmp_path: Path, width: int) -> None:
    page = tmp_path / "page.html"
    written(film, page)
    chromium.open(page, width)
    still(chromium)
    assert at(chromium) == 0
    assert "Halle" in chromium.evaluate(f"{PLAYER}.currentSrc")
    chromium.click(".chart", 0.5)
    assert at(chromium) == pytest.approx(3.0, abs=0.1)
    chromium.click(".ranges button:nth-child(2)")
    assert at(chromium) == pytest.approx(4.0)
    chromium.click(".seen figure")
    assert at(chromium) == pytest.approx(0.5)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    film.unlink()  # as if the page had been mailed
    chromium.open(page, width)
    still(chromium)
    assert at(chromium) == 0
    assert chromium.evaluate(f"{PLAYER}.currentSrc").startswith("blob:")
    chromium.click(".ranges button:nth-child(2)")
    eventually(lambda: "0:04.0" in chromium.evaluate("document.querySelector('.note').textContent"))
    assert at(chromium) == pytest.approx(0.0)
    chromium.click(".chart", 0.5)
    assert "no clip in it shows 0:03.0" in chromium.evaluate("document.querySelector('.note').textContent")
