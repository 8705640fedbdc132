"""Clips in a real Chromium: it shows the pictures that FFmpeg decodes, at their times."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from lookout.video.segments.joining import join
from tests.browser import CHROMIUM, browser
from tests.unit.video.segments.test_joining import segments, whole

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

_PAGE = """<!doctype html><video id=clip muted preload=auto></video><script>
const video = document.getElementById("clip"), canvas = document.createElement("canvas");
const happens = name => new Promise((done, fail) => {
  video.addEventListener(name, done, {once: true});
  video.addEventListener("error", () => fail(new Error(video.error.message)), {once: true});
});
// A blob, because a canvas gives no pixels of another file's.
const bytes = Uint8Array.from(atob("CLIP"), letter => letter.charCodeAt(0));
video.src = URL.createObjectURL(new Blob([bytes], {type: "video/mp4"}));
async function shown(times) {
  if (video.readyState < 2) await happens("loadeddata");
  canvas.width = video.videoWidth; canvas.height = video.videoHeight;
  const context = canvas.getContext("2d"), pictures = [];
  for (const time of times) {
    video.currentTime = time;
    await happens("seeked");
    context.drawImage(video, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data, grey = [];
    for (let i = 0; i < pixels.length; i += 4) grey.push(pixels[i + 1]);
    pictures.push(grey);
  }
  return {pictures, duration: video.duration, width: canvas.width};
}
</script>"""


@pytest.mark.parametrize(
    ("container", "codec"),
    [("ts", "libx264"), ("mp4", "libx264"), ("mkv", "libx264"), ("webm", "libvpx-vp9"), ("mp4", "libx265")],
)
def test_chromium_shows_the_pictures_that_ffmpeg_decodes(tmp_path: Path, container: str, codec: str) -> None:
    parts = segments(container, codec, 0 if codec == "libvpx-vp9" else 2)
    # A hole of two seconds in the middle, which keeps its length.
    parts = (*parts[:2], *(replace(part, origin_us=part.origin_us + 1_000_000) for part in parts[3:5]))
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
        shown = page.evaluate(f"shown({json.dumps(times)})")
    assert abs(shown["duration"] - (clip.end_us - clip.spans[0].at_us) / 1e6) < 0.2
    before_hole = max(place for place, (at_s, _) in enumerate(frames) if at_s - frames[0][0] < 2.0)
    for place, ((at_s, pixels), grey) in enumerate(zip(frames, shown["pictures"], strict=True)):
        if place == before_hole:  # MP4 gives the hole to the picture that was decoded last before it
            continue
        drawn = np.array(grey, np.int16).reshape(pixels.shape[:2])
        # Its conversion from YUV rounds otherwise; another picture differs by the moving square.
        assert np.abs(drawn - pixels[:, :, 1]).max() <= 6, at_s
