"""Clips in a real Chromium: it shows the pictures that FFmpeg decodes, at their times."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from lookout.video.segments.joining import join
from tests.browser import CHROMIUM, Browser, browser
from tests.eventually import eventually
from tests.unit.video.segments.test_joining import segments, whole

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

#: when holes of the clip begin, seconds
ENDS = (2.0, 6.0)
_PAGE = """<!doctype html><video id=clip muted preload=auto></video><script>
const video = document.getElementById("clip"), canvas = document.createElement("canvas");
const happens = name => new Promise((done, fail) => {
  video.addEventListener(name, done, {once: true});
  video.addEventListener("error", () => fail(new Error(video.error.message)), {once: true});
});
// A blob, because a canvas gives no pixels of another file's.
const bytes = Uint8Array.from(atob("CLIP"), letter => letter.charCodeAt(0));
video.src = URL.createObjectURL(new Blob([bytes], {type: "video/mp4"}));
async function load() {
  if (video.readyState < 2) await happens("loadeddata");
  canvas.width = video.videoWidth; canvas.height = video.videoHeight;
  return video.duration;
}
async function seek(time) { const seeked = happens("seeked"); video.currentTime = time; await seeked; }
function drawn() {
  const context = canvas.getContext("2d"), grey = [];
  context.drawImage(video, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < pixels.length; i += 4) grey.push(pixels[i + 1]);
  return grey;
}
</script>"""


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        *((container, "libx264") for container in ("ts", "mp4", "fmp4", "mov", "mkv", "flv", "h264")),
        *((container, "libx265") for container in ("ts", "mp4", "mkv", "hevc")),
        *((container, "libvpx-vp9") for container in ("webm", "mkv", "mp4")),
        *((container, "libsvtav1") for container in ("mp4", "mkv", "fmp4")),
    ],
)
def test_chromium_shows_the_pictures_that_ffmpeg_decodes(tmp_path: Path, container: str, codec: str) -> None:
    bare = container in ("h264", "hevc")  # without time stamps, so without reordered pictures
    options = "preset=12" if codec == "libsvtav1" else ""
    parts = segments(container, codec, 2 if codec in ("libx264", "libx265") and not bare else 0, options)
    # A hole of two seconds in the middle, which keeps its length; then a new epoch, after a minute.
    later = [replace(part, origin_us=part.origin_us + 1_000_000) for part in parts[3:5]]
    epoch = [replace(part, epoch=2, wall_offset_us=part.wall_offset_us + 60_000_000) for part in parts[:1]]
    parts = (*parts[:2], *later, *epoch)
    clip = join(whole(parts))
    (tmp_path / "page.html").write_text(_PAGE.replace("CLIP", base64.b64encode(clip.data).decode()))
    with av.open(io.BytesIO(clip.data)) as file:
        frames = [(float(frame.time), frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
    times = [at_s - frames[0][0] + 0.05 for at_s, _ in frames]  # within the picture
    with browser(tmp_path / "profile") as page:
        page.open(tmp_path / "page.html")
        playable = page.evaluate(f"video.canPlayType({json.dumps(f'video/mp4; codecs={clip.codecs}')})")
        if not playable:
            pytest.skip(f"this Chromium says that it does not play {clip.codecs}")
        assert abs(page.evaluate("load()") - (clip.end_us - clip.spans[0].at_us) / 1e6) < 0.2
        before_holes = [
            max(p for p, (at_s, _) in enumerate(frames) if at_s - frames[0][0] < end) for end in ENDS
        ]
        for place, (time, (_, pixels)) in enumerate(zip(times, frames, strict=True)):
            if place in before_holes:  # MP4 gives the hole to the picture that was decoded last before it
                continue
            page.evaluate(f"seek({time})")
            # A busy machine draws the picture before for a while after it says that it has sought.
            eventually(lambda pixels=pixels: differs(page, pixels) <= 6, 60.0)


def differs(page: Browser, pixels: npt.NDArray[np.uint8]) -> int:
    """How much what the page shows differs from a picture: rounding does little, another picture much."""
    drawn = np.array(page.evaluate("drawn()"), np.int16).reshape(pixels.shape[:2])
    return int(np.abs(drawn - pixels[:, :, 1]).max())
