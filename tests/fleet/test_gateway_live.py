"""Live view over the API: what a camera sends, from its newest keyframe on."""

from __future__ import annotations

import io
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest

from lookout.local import KafkaServer
from lookout.video.segments import Segment, cut
from tests.browser import CHROMIUM, browser
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_footage import FilmedCamera, noise
from tests.fleet.gateway_records import publish, records, verdict
from tests.unit.video.segments.clips import encode
from tests.unit.video.segments.test_joining import played

pytestmark = [pytest.mark.fleet, pytest.mark.long]
_names = itertools.count()


@pytest.fixture(scope="module")
def client(process: GatewayProcess) -> Iterator[httpx.Client]:
    with process.signed_in() as signed_in:
        yield signed_in


class Sending:
    """A camera of its own that sends one segment after the other, and is known to the history."""

    def __init__(self, broker: KafkaServer, client: httpx.Client, tenant: str = "") -> None:
        self.name = f"camera-{next(_names)}"
        self.camera = FilmedCamera(broker.bootstrap, self.name, round(time.time() * 1000), tenant)
        publish(broker.bootstrap, [verdict(self.name, 0, tenant=tenant)])
        eventually(lambda: self.name in client.get("/v1/cameras").text)

    def send(self, pieces: list[Segment], after_ms: int = 0) -> None:
        """Send segments, `after_ms` later than their time says."""
        for piece in pieces:
            self.camera.publish(piece.data, self.camera.begin_ms + after_ms + piece.start_us // 1000)


class Watching:
    """A viewer in a thread of its own."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self.url, self._client = f"/v1/cameras/{name}/live", client
        self.data, self.status, self.headers = b"", 0, httpx.Headers()
        self.ended = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        with self._client.stream("GET", self.url, timeout=60.0) as answer:
            self.status, self.headers = answer.status_code, answer.headers
            self._connection = answer.extensions["network_stream"].get_extra_info("socket")
            try:
                for chunk in answer.iter_bytes():
                    self.data += chunk
            except httpx.TransportError:  # the viewer left
                return
        self.ended.set()

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.data or self.ended.is_set())
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended.is_set() and self._connection is not None:
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def shown(self) -> list[bytes]:
        """The pictures that came so far."""
        assert self.status == 200, self.data
        return [frame.pixels for frame in played(self.data)]


def pieces_of(
    codec: str = "libx264", container: str = "ts", frames: int = 80, size: tuple[int, int] = (176, 144)
) -> list[Segment]:
    """A clip in segments of a second, 10 pictures each."""
    options = {"x265-params": "open-gop=0:log-level=none"} if codec == "libx265" else {}
    clip = encode(container, codec, frames=frames, size=size, speed=1, options=options)
    return list(cut(io.BytesIO(clip), target_s=1.0))


def pictures(pieces: list[Segment]) -> list[bytes]:
    """What FFmpeg decodes of segments."""
    return [frame.pixels for piece in pieces for frame in played(piece.data)]


def await_reading(client: httpx.Client, name: str, piece: Segment) -> None:
    """Wait until the gateway has read a segment: somebody is shown it."""
    last = pictures([piece])
    with Watching(client, name) as viewer:
        eventually(lambda: viewer.shown()[-len(last) :] == last)


@pytest.mark.parametrize(
    ("codec", "container"), [("libx264", "ts"), ("libx265", "mp4"), ("libvpx-vp9", "webm")]
)
def test_a_viewer_sees_the_newest_segment_and_all_that_follow(
    broker: KafkaServer, client: httpx.Client, codec: str, container: str
) -> None:
    pieces = pieces_of(codec, container)
    sending = Sending(broker, client)
    sending.send(pieces[:4])
    await_reading(client, sending.name, pieces[3])
    with Watching(client, sending.name) as viewer:
        # Nothing older than the newest segment.
        eventually(lambda: viewer.shown() == pictures(pieces[3:4]))
        for place in range(4, 8):
            sending.send(pieces[place : place + 1])
            eventually(lambda place=place: viewer.shown() == pictures(pieces[3 : place + 1]))
    times = [frame.at_us for frame in played(viewer.data)]
    assert all(abs(later - time_us - 100_000) < 2000 for time_us, later in itertools.pairwise(times))
    assert viewer.headers["content-type"].startswith("video/mp4; codecs=")
    looks = [
        record for record in records(broker.bootstrap, "audit.v1") if b"live.view" in (record.value() or b"")
    ]
    assert sum(sending.name.encode() in (look.value() or b"") for look in looks) == 2  # each view once


def test_a_viewer_begins_at_the_newest_keyframe_of_a_long_segment(
    broker: KafkaServer, client: httpx.Client
) -> None:
    clip = encode("ts", "libx264", frames=60, size=(176, 144), speed=1, options={})
    (whole,) = cut(io.BytesIO(clip), target_s=60.0)
    sending = Sending(broker, client)
    sending.send([whole])
    with Watching(client, sending.name) as viewer:
        everything = pictures([whole])
        eventually(lambda: viewer.shown() == everything[-10:])


def test_holes_and_new_epochs_are_closed_and_late_viewers_lose_nothing(
    broker: KafkaServer, client: httpx.Client
) -> None:
    pieces = pieces_of()
    sending = Sending(broker, client)
    sending.send(pieces[:2])
    await_reading(client, sending.name, pieces[1])
    with Watching(client, sending.name) as viewer:
        sending.send(pieces[3:5])  # a second is missing
        # A viewer may fall three seconds behind; what comes in a burst would be left out.
        eventually(lambda: viewer.shown() == pictures([pieces[1], *pieces[3:5]]))
        sending.send(pieces[:2], after_ms=3_600_000)  # its clock was set: a new epoch
        eventually(lambda: viewer.shown() == pictures([pieces[1], *pieces[3:5], *pieces[:2]]))
    times = [frame.at_us for frame in played(viewer.data)]
    assert all(abs(later - time_us - 100_000) < 2000 for time_us, later in itertools.pairwise(times))
    assert len({record.epoch for _, record in sending.camera.frames}) == 2


def test_another_size_ends_the_view_and_the_next_one_has_it(
    broker: KafkaServer, client: httpx.Client
) -> None:
    small, large = pieces_of(), pieces_of(size=(320, 240))
    sending = Sending(broker, client)
    sending.send(small[:2])
    with Watching(client, sending.name) as viewer:
        sending.send(large[2:4])
        assert viewer.ended.wait(60)
        assert viewer.shown() == pictures(small[1:2])
    with Watching(client, sending.name) as viewer:
        # It may begin before the gateway has read the newest segment.
        eventually(lambda: viewer.shown() in (pictures(large[3:4]), pictures(large[2:4])))


def test_who_sees_nothing_is_told_why(
    broker: KafkaServer, process: GatewayProcess, client: httpx.Client
) -> None:
    assert client.get("/v1/cameras/nobody/live").status_code == 404
    silent = Sending(broker, client)
    answer = client.get(f"/v1/cameras/{silent.name}/live")
    assert (answer.status_code, "sends nothing" in answer.json()["detail"]) == (404, True)
    old = Sending(broker, client)
    old.send(pieces_of("mpeg4", "avi", frames=20))
    answer = client.get(f"/v1/cameras/{old.name}/live")
    assert (answer.status_code, "mpeg4" in answer.json()["detail"]) == (404, True)
    secret = Sending(broker, client, "secret")
    secret.send(pieces_of(frames=20))
    made = client.post("/v1/tokens", json={"name": "other", "role": "viewer", "tenants": ["default"]}).json()
    with process.client(headers={"authorization": f"Bearer {made['secret']}"}) as other:
        eventually(lambda: other.get("/v1/session").status_code == 200)
        assert other.get(f"/v1/cameras/{secret.name}/live").status_code == 404
    with Watching(client, secret.name) as viewer:
        assert viewer.status == 200


def test_a_view_ends_with_the_token_of_its_viewer(
    broker: KafkaServer, process: GatewayProcess, client: httpx.Client
) -> None:
    pieces = pieces_of(frames=300)
    sending = Sending(broker, client)
    sending.send(pieces[:1])
    made = client.post("/v1/tokens", json={"name": "guest", "role": "viewer"}).json()
    with process.client(headers={"authorization": f"Bearer {made['secret']}"}) as guest:
        eventually(lambda: guest.get("/v1/session").status_code == 200)
        with Watching(guest, sending.name) as viewer:
            assert client.delete(f"/v1/tokens/{made['token']['id']}").status_code < 300
            for piece in pieces[1:]:
                sending.send([piece])
                if viewer.ended.wait(1.0):
                    break
            assert viewer.ended.is_set()


def test_one_viewer_has_few_views_and_one_that_takes_nothing_loses_them(
    broker: KafkaServer, process: GatewayProcess, client: httpx.Client
) -> None:
    # Noise, so that what is not taken does not fit into the buffers of the connection.
    pieces = list(cut(io.BytesIO(noise(20, (640, 480))), target_s=1.0))
    assert sum(len(piece.data) for piece in pieces) > 20_000_000
    sending = Sending(broker, client)
    sending.send(pieces[:1])
    made = client.post("/v1/tokens", json={"name": "slow", "role": "viewer"}).json()
    headers = {"authorization": f"Bearer {made['secret']}"}
    with process.client(headers=headers) as viewer, ExitStack() as stack:
        eventually(lambda: viewer.get("/v1/session").status_code == 200)
        for _ in range(4):
            taking_nothing = stack.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            lines = [f"GET /v1/cameras/{sending.name}/live HTTP/1.1", "host: gateway"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            taking_nothing.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            assert taking_nothing.recv(12) == b"HTTP/1.1 200"
        refused = viewer.get(f"/v1/cameras/{sending.name}/live")
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        for piece in itertools.cycle(pieces[1:]):
            sending.send([piece], after_ms=round(time.time() * 1000) - sending.camera.begin_ms)
            with viewer.stream("GET", f"/v1/cameras/{sending.name}/live") as answer:
                if answer.status_code == 200:
                    break
            time.sleep(1.0)
    assert "dropped a live view" in process.service.log.read_text()


_PLAY = """(async url => {
  const video = document.createElement("video");
  video.muted = true; video.src = url; document.body.append(video);
  window.video = video;
  await video.play();
  return video.videoWidth;
})(%r)"""

_PLAY_BY_SOURCE = """(async url => {
  const answer = await fetch(url), video = document.createElement("video"), media = new MediaSource();
  const opened = new Promise(done => media.addEventListener("sourceopen", done, {once: true}));
  video.muted = true; video.src = URL.createObjectURL(media); document.body.append(video);
  window.video = video;
  await opened;
  const buffer = media.addSourceBuffer(answer.headers.get("content-type")), reader = answer.body.getReader();
  const started = new Promise(done => video.addEventListener("playing", done, {once: true}));
  (async () => {
    for (let part; !(part = await reader.read()).done;) {
      buffer.appendBuffer(part.value);
      await new Promise(done => buffer.addEventListener("updateend", done, {once: true}));
    }
  })();
  video.play();
  await started;
  return video.videoWidth;
})(%r)"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize(
    "play", [pytest.param(_PLAY, marks=pytest.mark.long), _PLAY_BY_SOURCE], ids=["video", "MediaSource"]
)
def test_chromium_plays_what_a_camera_sends(
    broker: KafkaServer, process: GatewayProcess, client: httpx.Client, tmp_path: Path, play: str
) -> None:
    pieces = pieces_of(frames=600)
    sending = Sending(broker, client)
    sending.send(pieces[:1])
    stopped = threading.Event()

    def send() -> None:
        for piece in pieces[1:]:
            if stopped.wait(1.0):
                return
            sending.send([piece])

    sender = threading.Thread(target=send)
    sender.start()
    link = client.get("/v1/session")  # the link of this start was used; the page takes its session
    assert link.status_code == 200
    try:
        with browser(tmp_path / "profile") as page:
            for cookie in client.cookies.jar:
                page.call(
                    "Network.setCookie",
                    name=cookie.name,
                    value=str(cookie.value),
                    url=process.url,
                    httpOnly=True,
                )
            page.call("Page.navigate", url=f"{process.url}/healthz")
            eventually(lambda: page.evaluate("location.pathname") == "/healthz")
            eventually(lambda: page.evaluate("document.readyState") == "complete")
            assert page.evaluate(play % f"/v1/cameras/{sending.name}/live") == 176
            # It goes on to play as more comes, and keeps up: less than what it has buffered is not yet shown.
            eventually(lambda: page.evaluate("video.currentTime") > 4)
            eventually(
                lambda: page.evaluate("video.buffered.end(video.buffered.length - 1) - video.currentTime") < 4
            )
            assert page.evaluate("video.error") is None
    finally:
        stopped.set()
        sender.join()
