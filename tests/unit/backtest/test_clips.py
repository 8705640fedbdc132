"""Back-tests of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lookout import Pipeline
from lookout.backtest import clip_backtest
from lookout.rules import Rule
from tests.tiny_models import checkpoint
from tests.unit.segments.clips import encode


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named_and_the_others_count(tmp_path: Path) -> None:
    data = encode("fmp4", frames=60, fps=10, speed=1)
    files = [tmp_path / name for name in ("a.mp4", "b.mp4", "c.mp4")]
    for file, content in zip(files, (b"no video", data[: 3 * len(data) // 4], data), strict=True):
        file.write_bytes(content)
    with Pipeline(checkpoint("internvl"), ["Is anyone there?"], fps=2, stride_s=2, window_s=4) as pipeline:
        past = clip_backtest(pipeline, files, Rule(threshold=0.01))
    assert past.cameras == {"b.mp4", "c.mp4"}
    assert list(past.unread) == [str(file) for file in files[:2]]
    assert "is not a video" in past.unread[str(files[0])]
    assert "breaks off" in past.unread[str(files[1])]
