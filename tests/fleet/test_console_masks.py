"""Privacy masks in the console, in a real Chromium over real footage; this gateway refuses masked clips."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import pytest
from PIL import Image

from lookout.local import KafkaServer
from lookout.services.gateway.console_files import BUILT
from tests.browser import CHROMIUM, Browser
from tests.eventually import eventually
from tests.fleet.console_case import confirm, console, press, reload, show, text
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_footage import FilmedCamera
from tests.fleet.gateway_records import BEGIN_MS, publish, verdict
from tests.fleet.test_console import AXE
from tests.unit.video.segments.clips import encode

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the console is not built: make console"),
]
MASKS: Final = "/v1/cameras/yard/masks"
CORNERS: Final = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75))
#: the page is told this role
AS_ROLE: Final = """{
const own = window.fetch;
window.fetch = async (...asked) => {
  const answer = await own(...asked);
  if (asked[0] !== "/v1/session") return answer;
  return new Response(JSON.stringify({...await answer.json(), role: "%s"}), answer);
};
}"""


def moment(at_ms: int) -> str:
    """As RFC 3339 has it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


@pytest.fixture(scope="module")
def process(
    broker: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("gateway")
        yield gateway(stack, folder, broker.bootstrap, redis_url, {"masked_clips": "refuse"})


@pytest.fixture(scope="module")
def client(broker: KafkaServer, process: GatewayProcess) -> Iterator[httpx.Client]:
    square = {"fit": "cover", "input_width": 224, "input_height": 224}
    camera = FilmedCamera(broker.bootstrap, "yard", BEGIN_MS, **square)
    camera.film(encode("ts", "libx264", frames=100, size=(320, 180), speed=1))
    publish(broker.bootstrap, [verdict("yard", 0)])
    with process.signed_in() as signed_in:
        eventually(lambda: signed_in.get("/v1/cameras/yard").json().get("seen"))
        yield signed_in


@pytest.fixture(scope="module")
def page(
    process: GatewayProcess, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    with console(process, client, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def draw(page: Browser) -> None:
    """Click corners on the picture of the masks."""
    for x, y in CORNERS:
        page.evaluate(
            f"""(() => {{
  const drawing = document.querySelector(".masks svg"), box = drawing.getBoundingClientRect();
  const [clientX, clientY] = [box.left + {x} * box.width, box.top + {y} * box.height];
  drawing.dispatchEvent(new MouseEvent("click", {{bubbles: true, clientX, clientY}}));
}})()"""
        )
    press(page, "Close this area")


def versions(client: httpx.Client) -> list[dict[str, Any]]:
    """Of the camera's masks."""
    return list(client.get(MASKS).json().get("versions", []))


def test_masks_are_drawn_on_all_that_is_filmed(client: httpx.Client) -> None:
    url = f"/v1/cameras/yard/frames/{moment(BEGIN_MS + 3000)}.jpg"
    given, whole = (
        Image.open(io.BytesIO(client.get(url, params=params).content)) for params in ({}, {"whole": True})
    )
    assert given.width == given.height
    assert whole.size == (320, 180)
    both = client.get(url, params={"whole": True, "overlay": "patches"})
    assert (both.status_code, "overlay" in both.json()["detail"]) == (400, True)


def test_a_square_picture_is_whole_on_the_wall(page: Browser) -> None:
    show(page, "")
    eventually(lambda: page.evaluate("document.querySelector('.frame img')?.naturalHeight ?? 0"))
    box = "(name => document.querySelector(name).getBoundingClientRect().height)"
    assert page.evaluate(f"{box}('.frame img')") <= page.evaluate(f"{box}('.frame')")


def test_a_mask_is_drawn_saved_and_lifted(page: Browser, client: httpx.Client) -> None:
    show(page, "cameras/yard")
    eventually(lambda: page.evaluate("document.querySelectorAll('.masks img').length") == 1)
    box = page.evaluate(
        "(b => [b.width, b.height])(document.querySelector('.masks svg').getBoundingClientRect())"
    )
    assert box[0] / box[1] == pytest.approx(16 / 9, rel=0.02)
    draw(page)
    press(page, "Save masks")
    (saved,) = eventually(lambda: versions(client))
    points = [(point["x"], point["y"]) for point in saved["hide"][0]["points"]]
    assert points == [pytest.approx(corner, abs=0.01) for corner in CORNERS]
    eventually(lambda: "A mask is in force" in text(page))
    eventually(lambda: page.evaluate("document.querySelectorAll('.frame .masked').length") == 2)
    clip = client.get(
        "/v1/cameras/yard/clip.mp4", params={"from": moment(BEGIN_MS), "to": moment(BEGIN_MS + 5000)}
    )
    assert (clip.status_code, "LOOKOUT_MASKED_CLIPS" in clip.json()["detail"]) == (404, True)
    page.evaluate(AXE.read_text() + "; undefined")
    serious = "violations.filter(one => ['serious', 'critical'].includes(one.impact)).map(one => one.id)"
    assert page.evaluate(f"axe.run().then(found => found.{serious})") == []
    press(page, "Lift area 1")
    press(page, "Save masks")
    assert "visible again" in confirm(page, sure=True)
    eventually(lambda: len(versions(client)) == 2)
    assert "hide" not in versions(client)[-1]
    assert page.evaluate("faults") == []


@pytest.mark.parametrize(("role", "adds"), [("operator", True), ("viewer", False)])
def test_who_may_not_lift_a_mask_is_told_so_and_has_no_button(
    page: Browser, client: httpx.Client, role: str, adds: bool
) -> None:
    """The page is told another role than its session has: the gateway's own refusals have their tests."""
    newest = max((one["version"] for one in versions(client)), default=0)
    zone = {"name": "door", "points": [{"x": x, "y": y} for x, y in CORNERS]}
    assert client.put(MASKS, json={"version": newest, "hide": [zone]}).status_code == 200
    page.call("Page.addScriptToEvaluateOnNewDocument", source=AS_ROLE % role)
    reload(page)
    eventually(lambda: "door: hidden inside" in text(page))
    assert "Only an administrator may lift a mask" in text(page)
    names = page.evaluate("[...document.querySelectorAll('.masks button')].map(one => one.innerText)")
    assert names == (["Close this area", "Start over", "Save masks"] if adds else [])
