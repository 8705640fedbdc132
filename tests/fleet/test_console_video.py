"""Moving pictures of the console, in a real Chromium over real footage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lookout.local import KafkaServer
from lookout.services.gateway.console_files import BUILT
from lookout.v1.alerts_pb2 import Alert
from tests.browser import CHROMIUM, Browser
from tests.eventually import eventually
from tests.fleet.console_case import console, press, show, text
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_footage import FilmedCamera
from tests.fleet.gateway_records import BEGIN_MS, alert, publish, verdict
from tests.fleet.test_gateway_live import Sending, pieces_of
from tests.unit.video.segments.clips import encode

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the console is not built: make console"),
]


@pytest.fixture(scope="module")
def client(broker: KafkaServer, process: GatewayProcess) -> Iterator[httpx.Client]:
    camera = FilmedCamera(broker.bootstrap, "yard", BEGIN_MS - 10_000)
    camera.film(encode("ts", "libx264", frames=300, size=(352, 96), speed=1))
    incident = alert("yard", 0, Alert.KIND_CLOSED)
    ref, record = next(pair for pair in camera.frames if pair[1].segment.start_us >= 12_000_000)
    incident.evidence.add(record=ref, row=1).time.FromMicroseconds(
        record.segment.frames[1].time_us + record.wall_offset_us
    )
    publish(broker.bootstrap, [incident, *(verdict("yard", window) for window in range(5))])
    with process.signed_in() as signed_in:
        eventually(lambda: signed_in.get("/v1/incidents").json().get("incidents"))
        yield signed_in


@pytest.fixture
def page(process: GatewayProcess, client: httpx.Client, tmp_path: Path) -> Iterator[Browser]:
    with console(process, client, tmp_path / "profile") as opened:
        yield opened


def plays(page: Browser, selector: str) -> bool:
    """Whether a video shows moving pictures."""
    return bool(page.evaluate(f"(document.querySelector({selector!r})?.currentTime ?? 0) > 0"))


def test_the_clip_of_an_incident_plays_while_the_pointer_rests_on_it(page: Browser) -> None:
    show(page, "incidents")
    eventually(lambda: "yard" in text(page))
    row = "document.querySelector('li')"
    page.evaluate(f"{row}.dispatchEvent(new PointerEvent('pointerenter', {{pointerType: 'mouse'}}))")
    eventually(lambda: plays(page, "li video"))
    page.evaluate(f"{row}.dispatchEvent(new PointerEvent('pointerleave', {{pointerType: 'mouse'}}))")
    eventually(lambda: page.evaluate("document.querySelector('li video') === null"))
    assert page.evaluate("faults") == []


def test_the_clip_and_its_answers_are_seen_at_once(page: Browser) -> None:
    page.resize(1440, 900)
    show(page, "incidents")
    eventually(lambda: page.evaluate("document.querySelector('li a')?.click() === undefined"))
    for name in ("video", "canvas"):
        eventually(lambda name=name: page.evaluate(f"document.querySelector('.side {name}') !== null"))  # type: ignore[misc]
        bottom = page.evaluate(f"document.querySelector('.side {name}').getBoundingClientRect().bottom")
        assert 0 < bottom <= 900
    # Chromium starts no video whose length it does not know yet.
    eventually(lambda: page.evaluate("document.querySelector('.side video').readyState === 4"))
    page.click(".side video")
    eventually(lambda: plays(page, ".side video"))


def test_a_camera_of_the_wall_is_live_after_a_click(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    pieces, stopped = pieces_of(frames=600), threading.Event()
    sending = Sending(broker, client)

    def send() -> None:
        for piece in pieces:
            sending.send([piece])
            if stopped.wait(1.0):
                return

    sender = threading.Thread(target=send)
    sender.start()
    try:
        show(page, "")
        eventually(lambda: sending.name in text(page))
        picture = (
            f"[...document.querySelectorAll('.camera')].find(c => c.innerText.includes({sending.name!r}))"
        )
        page.evaluate(f"{picture}.querySelector('button').click()")
        eventually(lambda: plays(page, ".camera video"))
        page.evaluate(f"{picture}.querySelector('button').click()")
        eventually(lambda: page.evaluate("document.querySelector('.camera video') === null"))
        press(page, sending.name)  # the name leads to the camera
        eventually(lambda: page.evaluate("location.hash") == f"#/cameras/{sending.name}")
    finally:
        stopped.set()
        sender.join()
    assert page.evaluate("faults") == []
