"""Pictures that nothing refers to are those that FFmpeg's decoder leaves out as such."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from bench.unreferenced import Sent, sent, shares
from tests.unit.video.segments.clips import encode


@pytest.mark.parametrize(("codec", "bframes"), [("libx264", 0), ("libx264", 3), ("libx265", 3)])
@pytest.mark.parametrize("container", ["mp4", "ts"])
def test_as_many_pictures_are_referred_to_as_a_decoder_needs(
    container: str, codec: str, bframes: int, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{container}"
    path.write_bytes(encode(container, codec, frames=40, bframes=bframes))
    with av.open(str(path)) as source:
        source.streams.video[0].codec_context.skip_frame = "NONREF"
        needed = sum(1 for _ in source.decode(video=0))
    _, pictures = sent(path)
    assert len(pictures) == 40
    assert sum(picture.referred for picture in pictures) == needed
    assert (needed < 40) == (bframes > 0)


def test_samples_are_sent_although_nothing_refers_to_them() -> None:
    found = shares([Sent(6, 0.0, True), Sent(1, 0.25, False), Sent(2, 0.5, False), Sent(1, 0.75, False)])
    assert found == {"unreferenced": 0.4, "spare": 0.2, "pictures": 0.75}
