"""What operators do in the console, on a whole fleet with a rendered camera: no record is written by hand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import av
import httpx
import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.watches import write_watches
from lookout.local import NOTIFY_SECRETS, Fleet
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.services.gateway.console_files import BUILT
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import to_json
from tests.browser import CHROMIUM, Browser
from tests.eventually import eventually
from tests.fleet.console_case import faultless, fill, press, show, text
from tests.fleet.notify_case import KEY, HookServer
from tests.fleet.push_service import PushService

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the console is not built: make console"),
]
QUESTION = DEMO_QUESTIONS["lying"]
CHART = ".halves .u-over"
PICTURE = ".halves .frame img"


def link(fleet: Fleet) -> str:
    """A link that signs in once; there is another one after it was used."""
    return f"{fleet.address.gateway}/sign-in/{(fleet.folder / 'gateway-0' / 'sign-in').read_text()}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    own = {
        "prefill": {"key_every": "5"},
        "notify": {
            "notify_hosts": "127.0.0.1",
            "notify_networks": "127.0.0.0/8",
            "opinion_url": "large=http://127.0.0.1:9/v1,hosted=http://127.0.0.1:9/v1",
            "opinion_model": "large=a,hosted=b",
        },
    }
    folder = tmp_path_factory.mktemp("recordings")
    (film,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    with Fleet(
        settings={"model_dir": str(TINY)},
        stage_settings=own,
        recordings=[folder],
        memory="1h",
        gateway=True,
        notifications=True,
        open_servers=True,
    ) as running:
        rule = Rule(threshold=0.5, clear_threshold=0.5, k=2, n=3)
        write_watches(running.bootstrap, [Watch(id="lying", version=1, question=QUESTION, rule=rule)])
        environment = {"LOOKOUT_KAFKA": running.bootstrap}
        words = ["publish", str(film), "--camera", "room", "--rate", "max"]
        done = CliRunner().invoke(app, words, env=environment)
        assert done.exit_code == 0, done.output
        yield running


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=str(fleet.address.gateway), timeout=30.0) as signed_in:
        used = link(fleet)
        assert signed_in.get(used).status_code == 303
        signed_in.headers["x-csrf-token"] = signed_in.get("/v1/session").json()["csrf"]
        eventually(lambda: link(fleet) != used)
        yield signed_in


@pytest.fixture(scope="module")
def page(fleet: Fleet, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with faultless(tmp_path_factory.mktemp("profile")) as opened:
        opened.go(link(fleet))
        eventually(lambda: opened.evaluate("document.querySelector('main') !== null"))
        yield opened


@pytest.fixture(scope="module")
def incident(client: httpx.Client) -> dict[str, Any]:
    """The camera's incident, once it is over."""

    def closed() -> list[dict[str, Any]]:
        found = client.get("/v1/incidents?camera=room&watch=lying").json().get("incidents", [])
        return [one for one in found if one.get("closed")]

    return dict(eventually(closed, every=0.5)[-1])


def shown_range(page: Browser) -> tuple[float, float]:
    """What the timeline shows, in milliseconds: its address says it, where it does not end now."""
    query = parse_qs(str(page.evaluate("location.hash")).partition("?")[2])
    end = float(query["until"][0]) if "until" in query else float(page.evaluate("Date.now()"))
    return end - 1000 * float(query.get("span", ["3600"])[0]), end


def zoom(page: Browser, moment_ms: float, seconds: float) -> None:
    """Drag around a moment until so little time is shown."""
    for _ in range(30):
        begin, end = shown_range(page)
        if end - begin <= 1000 * seconds:
            return
        share, half = (moment_ms - begin) / (end - begin), 0.06
        page.drag(CHART, max(0.0, share - half), min(0.999, share + half))
        # It misses the chart if the page moves under it, as when a picture comes: then it is repeated.
        with suppress(AssertionError):
            eventually(lambda before=begin: shown_range(page)[0] > before + 1, 8)  # type: ignore[misc]
        eventually(lambda: page.evaluate(f"document.querySelector({CHART!r}) !== null"))
    raise AssertionError(f"the timeline still shows {shown_range(page)}")


def test_a_day_is_followed_down_to_seconds_and_shown_to_an_auditor(
    page: Browser, client: httpx.Client, incident: dict[str, Any]
) -> None:
    show(page, "")
    eventually(lambda: "room" in text(page))
    press(page, "room")
    eventually(lambda: "Timeline" in text(page))
    press(page, "1 day")
    eventually(lambda: page.evaluate(f"document.querySelector({CHART!r}) !== null"))
    assert page.evaluate("document.querySelectorAll('.strip .watched').length") >= 1
    verdicts = client.get("/v1/verdicts", params={"camera": "room", "limit": 100}).json()["verdicts"]
    best = max(verdicts, key=lambda one: one.get("p_yes", 0))
    moment_ms = float(page.evaluate(f"Date.parse({best['start']!r}) + 5000"))
    zoom(page, moment_ms, 30)
    pictures = set()
    for across in (0.4, 0.6):
        page.point(CHART, across)
        eventually(lambda: page.evaluate(f"document.querySelector({PICTURE!r})?.naturalWidth ?? 0"))
        source = eventually(
            lambda: (now := page.evaluate(f"document.querySelector({PICTURE!r}).src")) not in pictures and now
        )
        pictures.add(source)
    address = page.evaluate("document.querySelector('a[download]').getAttribute('href')")
    clip = client.get(address)
    assert (clip.status_code, clip.headers["content-type"].partition(";")[0]) == (200, "video/mp4")
    with av.open(io.BytesIO(clip.content)) as container:
        assert sum(1 for _ in container.decode(video=0)) > 10
    listed = "document.querySelector('main a[href^=\"#/incidents/\"]')"
    eventually(lambda: page.evaluate(f"{listed} !== null"))
    page.evaluate(f"{listed}.click()")
    eventually(lambda: page.evaluate("document.querySelector('.side video') !== null"))
    show(page, "report?within=86400")
    eventually(lambda: "What was not watched" in text(page))
    assert f"“{QUESTION}” was yes on room" in text(page)
    assert page.evaluate("document.querySelectorAll('.grid a[href^=\"#/incidents/\"]').length") >= 1
    assert page.evaluate("faults") == []


def test_a_test_alert_arrives_at_a_webhook_and_at_a_browser(
    page: Browser, client: httpx.Client, fleet: Fleet, incident: dict[str, Any]
) -> None:
    """The browser that is told is a fake: a real one needs the push service of Chromium's maker.

    The film's incident is over: it is not among what they are told.
    """
    (fleet.folder / NOTIFY_SECRETS / "hook").write_text(KEY)
    with HookServer() as hook, PushService() as browser:
        push = json.loads(to_json(browser.subscription))
        assert client.put("/v1/push", json={"push": push}).status_code == 200
        show(page, "notifications")
        press(page, "New notification")
        fill(page, "Name", "guards")
        fill(page, "Address to which messages", hook.url)
        fill(page, "Files with the signing keys", "hook")
        press(page, "Save")
        eventually(lambda: hook.url in text(page))
        show(page, "start")
        press(page, "Send a test alert")
        eventually(lambda: "guards: arrived" in text(page))
        eventually(lambda: "browser of local: arrived" in text(page))
        eventually(lambda: "guards: arrived" in text(page))
        (hit,) = hook.taken()
        assert hit.event["data"]["test"] is True
        assert hook.faults == []
        assert len(browser.got) == 1
        assert client.delete("/v1/notifications/guards").status_code == 204
    assert page.evaluate("faults") == []


def test_a_watch_names_one_of_several_second_models(page: Browser, client: httpx.Client) -> None:
    models = client.get("/v1/second-models").json()["models"]
    assert [(one["name"], one["model"]) for one in models] == [("large", "a"), ("hosted", "b")]
    asked = {"question": QUESTION, "cameras": ["nowhere"], "verify": True, "verify_with": "hostd"}
    refused = client.put("/v1/watches/second", json=asked)
    assert refused.status_code == 400
    assert "no second model is called 'hostd'" in refused.json()["detail"]
    assert "hosted, large" in refused.json()["detail"]
    assert client.get("/v1/watches/second").status_code == 404
    assert client.put("/v1/watches/second", json={**asked, "verify_with": "hosted"}).status_code == 200
    show(page, "watch/second")
    select = "[...document.querySelectorAll('select')].at(-1)"
    eventually(lambda: page.evaluate(f"{select}?.value") == "hosted")
    page.evaluate(f"void ({select}.value = 'large')")
    page.evaluate(f"{select}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    press(page, "Save")
    eventually(lambda: client.get("/v1/watches/second").json()["watch"].get("verify_with") == "large")
    eventually(lambda: "hosted → large" in text(page))
    assert page.evaluate("faults") == []


def test_a_moment_is_found_seen_and_made_a_watch(
    page: Browser, client: httpx.Client, incident: dict[str, Any]
) -> None:
    show(page, "find")
    fill(page, "Question", QUESTION)
    press(page, "Search")
    hit = "document.querySelector('.hits li.card')"
    eventually(lambda: page.evaluate(f"{hit}?.querySelector('img')?.naturalWidth ?? 0"), every=0.5)
    eventually(lambda: "1 camera searched." in text(page), every=0.5)
    assert "room" in page.evaluate(f"{hit}.innerText")
    said = rf"Incident: {re.escape(QUESTION)}\s+\S.* – \S"  # and when it was
    eventually(lambda: re.search(said, page.evaluate(f"{hit}.innerText")))
    address = "navigator.clipboard.writeText = copied => (window.copied = copied, Promise.resolve())"
    page.evaluate(f"void ({address})")
    press(page, "Copy link")
    eventually(lambda: page.evaluate("window.copied"))
    press(page, "▶ Play")
    eventually(lambda: page.evaluate("document.querySelector('.hits video')?.src"))
    clip = client.get(page.evaluate("document.querySelector('.hits video').src"))
    with av.open(io.BytesIO(clip.content)) as container:
        assert sum(1 for _ in container.decode(video=0)) > 10
    press(page, "✓ Right")
    eventually(lambda: "Saved: back-tests use it." in text(page))
    press(page, "Search")
    pressed = f"{hit}?.querySelector('[aria-pressed=true]')"
    eventually(lambda: page.evaluate(f"{pressed}?.innerText") == "✓ Right", every=0.5)
    page.evaluate(f"{pressed}.click()")
    eventually(lambda: not client.get("/v1/labels").json().get("labels"))
    press(page, "Make this a watch")
    eventually(lambda: page.evaluate("document.querySelector('textarea')?.value") == QUESTION)
    show(page, page.evaluate("window.copied").partition("#/")[2])
    eventually(lambda: "The moment of this link" in text(page))
    press(page, "Verify")
    eventually(lambda: f"Incident: {QUESTION}" in text(page), every=0.5)
    eventually(lambda: "The moment of this link" not in text(page))
    press(page, f"Incident: {QUESTION}")
    eventually(lambda: page.evaluate("location.hash") == f"#/incidents/{incident['id']}")
    show(page, page.evaluate("window.copied").partition("#/")[2])
    eventually(lambda: page.evaluate("document.querySelector('.hits img')?.naturalWidth"))
    taken = page.evaluate("document.querySelector('.hits img').alt")
    page.evaluate("document.querySelector('.hits h3 a').click()")
    eventually(lambda: page.evaluate("document.querySelector('section img')?.alt") == taken)
    eventually(lambda: page.evaluate("document.querySelector('section img').naturalWidth"))
    assert page.evaluate("faults") == []


def test_a_watch_is_tried_on_its_past_judged_changed_and_taken_back(
    page: Browser, client: httpx.Client, incident: dict[str, Any]
) -> None:
    show(page, "watch")
    fill(page, "Name", "fallen")
    fill(page, "Question", QUESTION)
    eventually(lambda: "The watch lying already asks this" in text(page))
    fill(page, "Cameras", "room")
    press(page, "Try it on the last day")
    eventually(lambda: "Precision" in text(page), every=0.5)
    count = "document.querySelectorAll('section li').length"
    assert page.evaluate(count) >= 1
    eventually(lambda: page.evaluate("document.querySelector('section li img')?.naturalWidth ?? 0"))
    told = "document.querySelector('section dl').innerText"
    assert "mark some moments first" in page.evaluate(told)
    (job,) = client.get("/v1/backtests").json()["jobs"]
    past = client.get(f"/v1/backtests/{job['request']['id']}").json()["answers"]["backtest"]
    scores = [one["score"] for one in past["incidents"]]
    press(page, "✓ Right")
    fill(page, "Counts as yes from", "0.3")
    eventually(lambda: "1 of 1 reported and marked" in page.evaluate(told))
    assert "1 of 1 right moments" in page.evaluate(told)
    assert "Cost per day" in page.evaluate(told)
    fill(page, "Counts as yes from", "0.99")
    reported = sum(score >= 0.99 for score in scores)
    eventually(lambda: f"{reported} of the {len(scores)} moments reach this" in text(page))
    fill(page, "Counts as yes from", "0.5")
    press(page, "Save")
    eventually(lambda: client.get("/v1/watches/fallen").status_code == 200)
    eventually(lambda: page.evaluate("location.hash") == "#/watch/fallen")
    eventually(lambda: page.evaluate("document.querySelector('textarea')?.value"))
    fill(page, "Counts as yes from", "0.9")
    press(page, "Save")
    eventually(lambda: "50 % → 90 %" in text(page))
    press(page, "Use this version again")
    press(page, "Save")
    eventually(lambda: "90 % → 50 %" in text(page))
    assert client.get("/v1/watches/fallen").json()["watch"]["rule"]["threshold"] == 0.5
    assert page.evaluate("faults") == []
