"""The console in a real Chromium, over a gateway whose history is written by records."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import av
import httpx
import pytest
import redis
from confluent_kafka import Consumer, TopicPartition

from lookout.administration import Writer
from lookout.local import KafkaServer
from lookout.models import TINY, listed_questions
from lookout.services.gateway.console_files import BUILT
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.recordings_pb2 import RecordingAnswers
from lookout.wire import ALERTS, ANSWERS, CAMERA_REPORT, SEGMENTS, from_json, to_json
from tests.browser import CHROMIUM, Browser, browser
from tests.eventually import eventually
from tests.fleet.console_case import choose, confirm, console, fill, press, show, text, tick
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_footage import noise
from tests.fleet.gateway_records import BEGIN_MS, alert, health_alert, publish, records, verdict, watch
from tests.fleet.push_service import PushService
from tests.numbered import clip

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the console is not built: make console"),
]
HOSTILE: Final = "<img src=x onerror=window.hacked=1>"
AXE: Final = BUILT.parent / "node_modules" / "axe-core" / "axe.min.js"
VIEWS: Final = (
    "",
    "incidents",
    "watches",
    "watch",
    "watch/lying",
    "recordings",
    "find",
    "report",
    "notifications",
    "notifications/hook",
    "start",
    "cameras/gate",
    *(
        f"operations?tab={tab}"
        for tab in ("fleet", "coverage", "costs", "usage", "letters", "audit", "tokens")
    ),
)

#: what waits for an answer before it shows anything
LOADED: Final = (
    "",
    "incidents",
    "watches",
    "watch/lying",
    "recordings",
    "report",
    "notifications",
    "notifications/hook",
    "cameras/gate",
    "operations?tab=fleet",
)
BUTTON: Final = "[...document.querySelectorAll('button')].find(one => one.innerText.trim() === '{}')"
BUSY: Final = "Kafka does not answer: try again"


@pytest.fixture(scope="module")
def client(broker: KafkaServer, process: GatewayProcess) -> Iterator[httpx.Client]:
    publish(
        broker.bootstrap,
        [
            watch(),
            *(alert("gate", number) for number in range(3)),
            alert("gate", 2, Alert.KIND_CLOSED),
            alert(HOSTILE, 0),
            *(verdict("gate", window) for window in range(40)),
            *(verdict(HOSTILE, window, None) for window in range(5)),
        ],
    )
    with process.signed_in() as signed_in:
        eventually(lambda: len(signed_in.get("/v1/incidents").json().get("incidents", [])) == 4)
        yield signed_in


@pytest.fixture(scope="module")
def page(
    process: GatewayProcess, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    with console(process, client, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_whoever_has_no_session_is_told_how_to_sign_in(process: GatewayProcess, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as stranger:
        stranger.go(f"{process.url}/")
        eventually(lambda: "lookout sign-in" in text(stranger))


def test_every_view_obeys_the_policy_and_fails_nowhere(page: Browser) -> None:
    for view in VIEWS:
        show(page, view)
    assert page.evaluate("faults") == []


@pytest.fixture
def refusing(page: Browser) -> Iterator[None]:
    """The gateway answers each call of the page with 503 while this says so."""
    page.evaluate(
        f"""window.refusing = true; window.unrefused = fetch;
window.fetch = (path, options) => refusing && !options?.redirect
  ? Promise.resolve(Response.json({{detail: {BUSY!r}}}, {{status: 503}})) : unrefused(path, options);
undefined"""
    )
    yield
    page.evaluate("window.fetch = unrefused; undefined")


@pytest.mark.parametrize("view", LOADED)
@pytest.mark.usefixtures("refusing")
def test_a_view_that_cannot_be_loaded_says_why_and_tries_again(page: Browser, view: str) -> None:
    show(page, "start")
    show(page, view)
    main = "document.querySelector('main').innerText"
    eventually(lambda: BUSY in page.evaluate(main))
    if "/" in view:
        assert not page.evaluate("document.querySelector('main form') !== null"), (
            "it would save what it lacks"
        )
    page.evaluate("refusing = false")
    if view == LOADED[0]:
        press(page, "Try again")  # or by itself after seconds
    eventually(lambda: BUSY not in page.evaluate(main))
    show(page, view)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious(page: Browser, theme: str, width: int) -> None:
    page.resize(width, 900)
    page.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
    page.evaluate(AXE.read_text() + "; undefined")
    found: list[Any] = []
    for view in VIEWS:
        show(page, view)
        results = page.evaluate(
            "axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
            ".map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html)]))"
        )
        found += [(view, *result) for result in results]
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), f"{view} is too wide"
    page.resize(1280, 900)
    assert not found


def test_a_notification_is_added_changed_and_removed(page: Browser, client: httpx.Client) -> None:
    show(page, "notifications")
    press(page, "New notification")
    fill(page, "Name", "guards")
    fill(page, "Address to which messages", "https://hooks.example.org/lookout")
    fill(page, "Files with the signing keys", "guards-key")
    fill(page, "Cameras", "gate*, yard")
    press(page, "Save")
    eventually(lambda: "https://hooks.example.org/lookout" in text(page))
    saved = client.get("/v1/notifications/guards").json()["notification"]
    assert (saved["webhook"]["secrets"], saved["cameras"]) == (["guards-key"], ["gate*", "yard"])
    body = {**saved, "quiet_hours": [{"start": "22:00", "end": "06:00"}]}
    assert client.put("/v1/notifications/guards", json=body).status_code == 200
    show(page, "notifications/guards")
    eventually(lambda: "Only if nobody takes" in text(page))
    fill(page, "Only if nobody takes", "5")
    press(page, "Save")
    eventually(
        lambda: client.get("/v1/notifications/guards").json()["notification"].get("unclaimed_s") == 300
    )
    eventually(lambda: page.evaluate("document.querySelector('form') === null"))  # back at the list
    changed = client.get("/v1/notifications/guards").json()["notification"]
    assert changed["quiet_hours"][0]["start"] == "22:00", "what the form does not show stays"
    show(page, "notifications/guards")
    eventually(lambda: page.evaluate("document.querySelector('form') !== null"))
    press(page, "Remove")
    assert "Remove this notification?" in confirm(page, sure=True)
    eventually(lambda: client.get("/v1/notifications/guards").status_code == 404)


def test_a_browser_is_told_and_told_no_more(
    page: Browser, client: httpx.Client, process: GatewayProcess
) -> None:
    """The subscription is a fake: a real one needs the push service of Chromium's maker."""
    with PushService() as service:
        push = json.loads(to_json(service.subscription))
        keys = json.dumps({"endpoint": push.pop("endpoint"), "keys": push})
        show(page, "notifications")
        page.evaluate(
            f"""(() => {{
  const fake = {{...{keys}, toJSON: () => ({keys}), unsubscribe: async () => (window.fake = null)}};
  PushManager.prototype.subscribe = async () => (window.fake = fake);
  PushManager.prototype.getSubscription = async () => window.fake ?? null;
}})()"""
        )
        eventually(lambda: "Get notifications in this browser" in text(page))
        press(page, "Get notifications in this browser")
        eventually(lambda: "This browser is now notified" in text(page))
        (view,) = client.get("/v1/push").json()["notifications"]
        assert view["notification"]["push"]["endpoint"] == service.subscription.endpoint
        eventually(lambda: "Get notifications in this browser" not in text(page))
        press(page, "Remove")
        eventually(lambda: "notifications" not in client.get("/v1/push").json())
        eventually(lambda: page.evaluate("window.fake") is None)  # after the gateway has answered
    assert page.evaluate("faults") == []


def test_what_is_pushed_is_shown_and_replaced_by_what_comes_later(
    page: Browser, process: GatewayProcess
) -> None:
    page.call("Browser.grantPermissions", permissions=["notifications"], origin=process.url)
    page.evaluate("navigator.serviceWorker.register('/push.js').then(() => undefined)")
    # A message to a worker that does not run yet is lost.
    active = "one => one.active?.state === 'activated'"
    workers = "navigator.serviceWorker.getRegistrations()"
    eventually(lambda: page.evaluate(f"{workers}.then(all => all.some({active}))"))
    ready = "navigator.serviceWorker.ready.then(worker => worker.getNotifications())"
    shown = f"{ready}.then(all => all.map(one => [one.body, one.data]))"
    page.call("ServiceWorker.enable")

    def is_shown(words: str) -> bool:
        """Push a message, and look. A starting worker may lose one; a copy replaces it."""
        message = {
            "text": words,
            "topic": "one",
            "incident": "incident-1",
            "critical": False,
            "silent": False,
        }
        page.call(
            "ServiceWorker.deliverPushMessage",
            origin=process.url,
            registrationId="0",
            data=json.dumps(message),
        )
        return page.evaluate(shown) == [[words, "incidents/incident-1"]]  # type: ignore[no-any-return]

    for words in ("gate: yes", "gate: no longer"):
        eventually(lambda words=words: is_shown(words), every=0.5)  # type: ignore[misc]


def test_a_drag_over_a_live_timeline_outlives_new_data(page: Browser) -> None:
    show(page, "cameras/gate?span=21600")
    box = eventually(
        lambda: page.evaluate(
            "(box => box && [box.x, box.y, box.width, box.height])"
            "(document.querySelector('.u-over')?.getBoundingClientRect())"
        )
    )

    def mouse(kind: str, across: float) -> None:
        place = {"x": box[0] + across * box[2], "y": box[1] + box[3] / 2}
        page.call("Input.dispatchMouseEvent", type=kind, **place, button="left", clickCount=1)

    # The text with the range changes every ten seconds, and with it the data.
    ranges = (
        "[...document.querySelectorAll('main p.soft')].map(one => one.innerText).find(one => / – /.test(one))"
    )
    mouse("mousePressed", 0.4)
    mouse("mouseMoved", 0.5)
    before = page.evaluate(ranges)
    assert before
    eventually(lambda: page.evaluate(ranges) != before)
    mouse("mouseMoved", 0.6)
    mouse("mouseReleased", 0.6)
    query = "new URLSearchParams(location.hash.split('?')[1])"
    eventually(lambda: page.evaluate(f"{query}.has('until')"))
    assert page.evaluate(f"Number({query}.get('span'))") > 0.15 * 21600, "new data ended the drag"


def test_hostile_names_are_text(page: Browser) -> None:
    for view in ("", "incidents", "operations?tab=coverage"):
        show(page, view)
        eventually(lambda: HOSTILE in text(page))
    assert page.evaluate("window.hacked") is None


def test_an_incident_shows_without_a_reload(page: Browser, broker: KafkaServer) -> None:
    show(page, "incidents")
    page.evaluate("window.marked = true")
    publish(broker.bootstrap, [alert("late-camera", 7)])
    eventually(lambda: "late-camera" in text(page))
    assert page.evaluate("window.marked") is True


def test_an_incident_says_which_allowed_answer_was_likeliest(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    opened = alert("ramp", 6)
    opened.question = "How many people are in view? [2..4] when count >= 4"
    windows = [verdict("ramp", 30 * 6 + number, p_yes) for number, p_yes in enumerate((0.3, 0.8))]
    for own, shares in zip(windows, ((0.7, 0.2, 0.1), (0.2, 0.1, 0.7)), strict=True):
        for answer, p in zip("234", shares, strict=True):
            own.answers.add(answer=answer, p=p)
    publish(broker.bootstrap, [*windows, opened])
    eventually(lambda: client.get(f"/v1/incidents/{opened.incident}").is_success)
    since, until = (
        opened.start.ToJsonString(),
        (opened.end.ToDatetime(UTC) + timedelta(minutes=1)).isoformat(),
    )
    around = {"camera": "ramp", "since": since, "until": until, "limit": 10}
    eventually(lambda: len(client.get("/v1/verdicts", params=around).json().get("verdicts", ())) == 2)
    show(page, f"incidents/{opened.incident}?camera=ramp")
    rows = "[...document.querySelectorAll('li:has(> .track)')]"
    shown = f"{rows}.map((row) => [row.firstChild.textContent, row.lastChild.textContent])"
    eventually(lambda: page.evaluate(shown) == [["4", "70 %"], ["2", "20 %"], ["3", "10 %"]])
    show(page, f"report?camera=ramp&since={since}")
    eventually(lambda: page.evaluate(shown) == [["4", "70 %"], ["2", "20 %"], ["3", "10 %"]])
    assert page.evaluate("faults") == []


def test_what_is_wrong_with_a_camera_is_said_in_words(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    window = (int(time.time() * 1000) - BEGIN_MS) // 2000
    publish(broker.bootstrap, [verdict("dome", window), health_alert("dome", 8, "covered")])
    eventually(lambda: client.get("/v1/cameras/dome").json().get("fault") == "covered")
    show(page, "?camera=dome")
    eventually(lambda: "lens covered" in text(page))
    show(page, "cameras/dome")
    eventually(lambda: "lens covered" in text(page))
    (incident,) = client.get("/v1/incidents?camera=dome").json()["incidents"]
    show(page, f"incidents/{incident['id']}?camera=dome")
    eventually(lambda: "Camera health" in text(page))
    said = text(page)
    assert said.count("The lens is covered.") == 2  # in the list and as the title
    assert "peak" not in said
    assert "Snooze" not in said
    assert page.evaluate("faults") == []


def test_on_a_phone_the_acts_on_many_incidents_stay_on_the_screen(page: Browser) -> None:
    page.resize(390, 600)
    show(page, "incidents")
    rows = "document.querySelectorAll('main li input')"
    eventually(lambda: page.evaluate(f"{rows}.length") >= 4)
    page.evaluate(f"[...{rows}].at(-1).scrollIntoView(); [...{rows}].at(-1).click()")
    place = f"(box => [box.top, box.bottom])({BUTTON.format('Resolve')}.getBoundingClientRect())"
    eventually(lambda: 0 < page.evaluate(place)[0] < page.evaluate(place)[1] <= 600)
    page.evaluate(f"[...{rows}].at(-1).click()")
    page.resize(1280, 900)


def test_on_a_phone_the_whole_menu_is_one_press_away(page: Browser) -> None:
    page.resize(390, 844)
    show(page, "incidents")
    links = "[...document.querySelectorAll('nav a')]"
    shown = f"{links}.filter(one => one.getClientRects().length).map(one => one.getBoundingClientRect())"
    assert page.evaluate(shown) == []
    press(page, "☰ Incidents")
    eventually(lambda: page.evaluate(f"{shown}.length") == page.evaluate(f"{links}.length") >= 9)
    outside = (
        f"{shown}.filter(box => box.left < 0 || box.right > innerWidth || box.bottom > innerHeight).length"
    )
    assert page.evaluate(outside) == 0
    press(page, "Operations")
    eventually(lambda: page.evaluate(shown) == [])
    page.resize(1280, 900)
    assert page.evaluate(f"{shown}.length") >= 9


def test_an_incident_is_handled_with_keys_alone(page: Browser, client: httpx.Client) -> None:
    show(page, "incidents?camera=gate")
    eventually(lambda: page.evaluate("document.querySelectorAll('li a').length") == 3)
    for key in ("j", "j", "c"):
        page.evaluate(f"dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}}}))")
        time.sleep(0.1)
    chosen = str(page.evaluate("location.hash")).split("/")[2].split("?")[0]
    eventually(lambda: client.get(f"/v1/incidents/{chosen}").json()["state"] == "claimed")
    assert client.get(f"/v1/incidents/{chosen}").json()["assignee"] == "local"
    eventually(lambda: "False positive" in text(page))
    press(page, "False positive")
    eventually(lambda: client.get(f"/v1/incidents/{chosen}").json()["state"] == "false-positive")


def test_what_is_resolved_leaves_the_list_and_the_next_one_is_shown(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    publish(broker.bootstrap, [alert("lobby", number) for number in range(3)])
    eventually(lambda: len(client.get("/v1/incidents?camera=lobby").json().get("incidents", ())) == 3)
    newest, middle, last = (one["id"] for one in client.get("/v1/incidents?camera=lobby").json()["incidents"])
    show(page, f"incidents/{newest}?camera=lobby")
    rows = "document.querySelectorAll('main [id^=incident-]').length"
    eventually(lambda: page.evaluate(rows) == 3)
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', {key: 'r'}))")
    eventually(lambda: page.evaluate("location.hash").startswith(f"#/incidents/{middle}"))
    eventually(lambda: page.evaluate(rows) == 2)
    assert client.get(f"/v1/incidents/{newest}").json()["state"] == "resolved"
    press(page, "Next →")
    eventually(lambda: page.evaluate("location.hash").startswith(f"#/incidents/{last}"))
    press(page, "Undo")
    eventually(lambda: page.evaluate(rows) == 3)
    # What leaves the list while it is shown has its place for the keys.
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', {key: 'k'}))")
    eventually(lambda: page.evaluate("location.hash").startswith(f"#/incidents/{middle}"))
    client.post(f"/v1/incidents/{middle}/actions", json={"kind": "resolve"})
    eventually(lambda: page.evaluate(rows) == 2)
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', {key: 'j'}))")
    eventually(lambda: page.evaluate("location.hash").startswith(f"#/incidents/{last}"))
    show(page, "incidents?camera=lobby&state=any")
    eventually(lambda: page.evaluate(rows) == 3)
    page.evaluate("document.querySelector('.all input').click()")
    eventually(lambda: "3 selected" in text(page))


def test_an_incident_begins_when_its_answer_became_yes(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    opened = alert("foyer", 4)
    opened.raised.FromMilliseconds(opened.start.ToMilliseconds() + 9_000)
    publish(broker.bootstrap, [opened])
    eventually(lambda: client.get(f"/v1/incidents/{opened.incident}").is_success)
    zone = page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")
    start, yes = (
        time.ToDatetime(UTC).astimezone(ZoneInfo(zone)).strftime("%H:%M:%S")
        for time in (opened.start, opened.raised)
    )
    show(page, f"incidents/{opened.incident}?camera=foyer")
    eventually(lambda: f"looked at from {start}" in text(page))
    heading = "document.querySelector('.side h1 ~ p.soft').innerText"
    assert page.evaluate(heading).partition(" – ")[0].endswith(yes)
    # The list may be drawn after what is chosen from it.
    eventually(lambda: f"{yes} (" in page.evaluate("document.querySelector('main li')?.innerText ?? ''"))


def test_what_leaves_the_list_is_selected_no_more(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    publish(broker.bootstrap, [alert("porch-1", 9), alert("porch-2", 9)])
    eventually(lambda: len(client.get("/v1/incidents?camera=porch-*").json().get("incidents", ())) == 2)
    show(page, "incidents")
    field = "document.querySelector('input[aria-label=Camera]')"
    page.evaluate(f"{field}.value = 'porch'; {field}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    rows = "[...document.querySelectorAll('main [id^=incident-]')]"
    eventually(lambda: page.evaluate(f"{rows}.length") == 2)  # a part of the name is enough
    assert page.evaluate(f"{field}.value") == "*porch*"
    page.evaluate(f"{rows}.forEach(row => row.querySelector('input').click())")
    eventually(lambda: "2 selected" in text(page))
    resolved = alert("porch-1", 9).incident
    assert client.post(f"/v1/incidents/{resolved}/actions", json={"kind": "resolve"}).is_success
    eventually(lambda: "1 selected" in text(page))
    assert page.evaluate(f"{rows}.map(row => row.querySelector('input').checked)") == [True]
    assert page.evaluate("faults") == []


def test_acts_on_many_say_what_they_did_and_keep_the_selection(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    publish(broker.bootstrap, [alert("dock-1", 9), alert("dock-2", 9)])
    query = "/v1/incidents?camera=dock-*"
    eventually(lambda: len(client.get(query).json().get("incidents", ())) == 2)
    show(page, "incidents?camera=dock-*")
    boxes = "[...document.querySelectorAll('main li input')]"
    eventually(lambda: page.evaluate(f"{boxes}.length") == 2)
    page.evaluate(f"{boxes}.forEach(box => box.click())")
    eventually(lambda: "2 selected: the keys c, a, r, f act on all of them" in text(page))
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', {key: 'c'}))")
    eventually(lambda: "2 incidents: claimed." in text(page))
    press(page, "Undo")
    eventually(lambda: "2 incidents: released." in text(page))
    assert {one["state"] for one in client.get(query).json()["incidents"]} == {"new"}
    for key, said, ticked in (("c", "claimed.", 2), ("r", "resolved.", 0)):
        page.evaluate(f"dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}}}))")
        eventually(lambda said=said: f"2 incidents: {said}" in text(page))  # type: ignore[misc]
        assert page.evaluate(f"{boxes}.filter(box => box.checked).length") == ticked
    assert {one["state"] for one in client.get(query).json()["incidents"]} == {"resolved"}
    press(page, "Undo")
    eventually(lambda: "2 incidents: open again." in text(page))
    noted = alert("dock-1", 9).incident
    act = f"/v1/incidents/{noted}/actions"
    for body in ({"kind": "note", "note": "=a van,\nwhite"}, {"kind": "resolve"}):
        assert client.post(act, json=body).is_success
    show(page, "incidents?camera=dock-*&state=resolved")
    eventually(lambda: "· local" in page.evaluate("document.querySelector('main li').innerText"))
    page.evaluate(
        "window.saved = []; URL.createObjectURL = blob => (saved.push(blob), 'blob:none'); undefined"
    )
    press(page, "CSV")
    eventually(lambda: page.evaluate("saved.length"))
    (row,) = csv.DictReader(io.StringIO(page.evaluate("saved[0].text()"), newline=""))
    said = {name: row[name] for name in ("id", "assignee", "decided_by", "notes")}
    assert said == {"id": noted, "assignee": "", "decided_by": "local", "notes": "local: =a van,\nwhite"}
    assert client.post(act, json={"kind": "reopen"}).is_success
    assert {one["state"] for one in client.get(query).json()["incidents"]} == {"reopened"}
    assert page.evaluate("faults") == []


def test_what_was_not_watched_leads_to_its_spans(page: Browser) -> None:
    show(page, "operations?tab=coverage")
    press(page, "from, to, why")
    eventually(lambda: "What was not watched" in text(page))
    eventually(lambda: page.evaluate("location.hash").startswith("#/report?camera="))
    assert page.evaluate("faults") == []


def test_a_report_tells_links_and_prints(page: Browser, client: httpx.Client) -> None:
    since = client.get("/v1/incidents?camera=gate").json()["incidents"][-1]["start"]
    show(page, f"report?camera=gate&since={since}")
    eventually(lambda: "3 incidents began on 1 camera." in text(page))
    assert "Is anyone lying" in text(page)
    first = page.evaluate("document.querySelector('main section a[aria-label^=\"Show it: \"]').hash")
    assert client.get(f"/v1/{first.removeprefix('#/')}").status_code == 200
    cited = "[...document.querySelectorAll('main section a[aria-label^=\"Show it: \"]')]"
    clocks = page.evaluate(f"{cited}.map(link => link.innerText)")
    assert all(clock[-6:-5] == clock[-3:-2] == ":" for clock in clocks), "links say when it was"
    if page.evaluate(f"new Date({since!r}).toDateString() === new Date().toDateString()"):
        assert all(len(clock) == len("07:51:56") for clock in clocks), "no date that the report's end has"
    assert "lying" not in page.evaluate("document.querySelector('.stretches').innerText").replace(
        "Is anyone lying on the ground?", ""
    ), "what was asked, not the watch's id"
    assert "Unusual spans are available only in a fleet with memory" in text(page)
    assert page.evaluate("document.querySelectorAll('.grid a[href^=\"#/incidents/\"]').length") == 3
    press(page, "Have a model write it")
    eventually(lambda: "no prose: no model is configured" in text(page))
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('header')).display") == "none"
    page.call("Emulation.setEmulatedMedia", media="")
    frames = "[...document.querySelectorAll('main .frame')]"
    empty = f"{frames}.filter(one => !one.innerText && !one.children[0].src)"
    page.evaluate(f"window.print = () => (window.unprinted = {empty}.length)")
    press(page, "Print")
    eventually(lambda: page.evaluate("window.unprinted") is not None)
    assert page.evaluate("unprinted") == 0, "what is further down is printed as well"
    assert page.evaluate("faults") == []


def test_a_report_says_from_when_to_when_and_why_nothing_was_watched(
    page: Browser, client: httpx.Client, redis_url: str
) -> None:
    error = "cannot reach 10.0.0.9: Connection refused"
    with redis.Redis.from_url(redis_url) as directory:
        directory.hset(CAMERA_REPORT.format(camera="gate"), mapping={"state": "connecting", "error": error})
        show(page, "report?camera=gate&within=604800")
        eventually(lambda: "What was not watched" in text(page))
        directory.delete(CAMERA_REPORT.format(camera="gate"))
    said = text(page)
    assert f"nothing came; the camera's agent says: {error}" in said
    assert ", still ongoing" in said
    assert said.index("What was not watched") < said.index("Hour by hour")
    assert "not set up yet: there were no answers about this camera before" in said
    assert "hours without incidents and without anything to watch are not shown" in said
    page.evaluate(
        "window.saved = []; URL.createObjectURL = blob => (saved.push(blob), 'blob:none'); undefined"
    )
    press(page, "Table of all (CSV)")
    eventually(lambda: page.evaluate("saved.length"))
    rows = list(csv.DictReader(io.StringIO(page.evaluate("saved[0].text()"))))
    assert {row["reason"] for row in rows} >= {"unset", "unseen"}
    for row in rows:
        length = datetime.fromisoformat(row["to"]) - datetime.fromisoformat(row["from"])
        assert float(row["unwatched_s"]) == pytest.approx(length.total_seconds(), abs=2), row
        assert row["why"]
    assert {row["ongoing"] for row in rows if row["reason"] == "unseen"} == {"yes"}
    assert page.evaluate("faults") == []


def test_a_report_is_of_the_days_and_times_that_are_chosen(page: Browser) -> None:
    show(page, "report?camera=gate")
    page.evaluate(
        """(() => {
  const choice = document.querySelector("main select");
  choice.value = "dates";
  choice.dispatchEvent(new Event("change", {bubbles: true}));
})()"""
    )
    eventually(lambda: page.evaluate("document.querySelectorAll('input[type=datetime-local]').length") == 2)
    written = page.evaluate(
        f"""[0, 30].map((minutes, place) => {{
  const field = document.querySelectorAll("input[type=datetime-local]")[place];
  const shown = new Date({BEGIN_MS} + 60_000 * minutes);
  field.value = new Date(shown - 60_000 * shown.getTimezoneOffset()).toISOString().slice(0, 19);
  field.dispatchEvent(new Event("input", {{bubbles: true}}));
  return shown.getTime();
}})"""
    )
    press(page, "Show")
    parts = "[...new URLSearchParams(location.hash.split('?')[1])].filter(([name]) => name !== 'camera')"
    eventually(lambda: page.evaluate(f"{parts}.map(([, time]) => Date.parse(time))") == written)
    eventually(lambda: "3 incidents began on 1 camera." in text(page))
    assert page.evaluate("faults") == []


def first_test_alert(bootstrap: str) -> Alert:
    """The first test alert in alerts.v1."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "console-test"})
    try:
        partitions = consumer.list_topics(ALERTS.name).topics[ALERTS.name].partitions
        consumer.assign([TopicPartition(ALERTS.name, number, 0) for number in partitions])
        while True:
            message = consumer.poll(30.0)
            assert message is not None, "there is no test alert"
            alert = from_json(message.value() or b"", Alert)
            if alert.kind == Alert.KIND_TEST:
                return alert
    finally:
        consumer.close()


def test_first_steps_test_the_alert_and_say_what_the_model_knows(
    page: Browser, client: httpx.Client, broker: KafkaServer
) -> None:
    show(page, "start")
    eventually(lambda: "Has an object been left behind?" in text(page))
    press(page, "Send a test alert")
    eventually(lambda: "the gateway has read it back" in text(page))
    eventually(lambda: "no notification is on" in text(page))
    (sent,) = (
        entry for entry in client.get("/v1/audit").json()["entries"] if entry["action"] == "alert.test"
    )
    assert first_test_alert(broker.bootstrap).id == sent["subject"]
    assert client.get(f"/v1/incidents/{sent['subject']}").status_code == 404, "nothing happened"
    show(page, "watch")
    fill(page, "Question", "is anyone LYING on the ground")
    lying = next(one for one in listed_questions(TINY) or () if "Has someone fallen?" in one.wordings)
    f1 = f"F1 {lying.f1['rendered']:.2f} on rendered footage, {lying.f1['real']:.2f} on real footage"
    eventually(lambda: f"{f1} (1 is perfect)" in text(page))
    fill(page, "Question", "Is a dragon in view?")
    eventually(lambda: "was not trained for this question" in text(page))
    press(page, "Is a vehicle in view?")
    eventually(lambda: "trained for this question: F1 1.00 on rendered footage" in text(page))


def test_a_network_camera_is_tried_corrected_and_removed(
    page: Browser, client: httpx.Client, redis_url: str
) -> None:
    """What its agent says is written here; tests/fleet/test_camera_agent.py has real agents."""
    with redis.Redis.from_url(redis_url) as directory:
        for said, shown in (
            ({"state": "connecting", "error": ""}, "An agent is connecting"),
            ({"state": "connecting", "error": "cannot reach 10.0.0.9: timed out"}, "cannot reach 10.0.0.9"),
            ({"state": "no-room", "error": ""}, "Every agent has as many cameras"),
            ({"state": "streaming", "error": ""}, "Decoding its first picture"),
        ):
            directory.hset(CAMERA_REPORT.format(camera="yard"), mapping=said)
            if said["error"] == "" and said["state"] == "connecting":
                show(page, "start")
                fill(page, "Name", "yard")
                fill(page, "Address (rtsp", "rtsp://10.0.0.9/live")
                press(page, "Add and try it")
            eventually(lambda shown=shown: shown in text(page))  # type: ignore[misc]
        directory.delete(CAMERA_REPORT.format(camera="yard"))
    page.evaluate("window.today = Date.now; Date.now = () => today() + 30_000; undefined")
    eventually(lambda: "No agent has taken the camera" in text(page))
    page.evaluate("Date.now = today; undefined")
    assert "An agent" not in text(page), "what was tried gives way to what became of it"
    assert client.get("/v1/cameras/yard").json()["source"]["url"] == "rtsp://10.0.0.9/live"
    press(page, "Remove it again")
    eventually(lambda: client.get("/v1/cameras/yard").status_code == 404)


def fill_address(page: Browser, address: str) -> None:
    """Write into the only field of the page that takes an address of a camera."""
    page.evaluate(
        f"""(field => {{
  field.value = {address!r}; field.dispatchEvent(new Event('input'));
}})(document.querySelector('input[pattern]'))"""
    )


def test_a_network_camera_is_corrected_and_removed_on_its_own_page(
    page: Browser, client: httpx.Client, redis_url: str
) -> None:
    added = client.put("/v1/cameras/yard", json={"url": "rtsp://10.0.0.9/live", "time_zone": "Asia/Tokyo"})
    assert added.status_code == 200, added.text
    show(page, "cameras/yard")
    eventually(lambda: "Change its address" in text(page))
    fill_address(page, "rtsp://10.0.0.8/live")
    page.evaluate("document.querySelector('input[pattern]').form.requestSubmit()")
    eventually(lambda: "Pulled from rtsp://10.0.0.8/live" in text(page))
    source = client.get("/v1/cameras/yard").json()["source"]
    assert (source["url"], source["time_zone"]) == ("rtsp://10.0.0.8/live", "Asia/Tokyo")
    page.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    fill_address(page, "rtsp://guard:secret@10.0.0.8/live")
    eventually(lambda: "Remove the user name and password from the address" in text(page))
    said = {"state": "connecting", "error": "cannot reach 10.0.0.8: timed out"}
    with redis.Redis.from_url(redis_url) as directory:
        directory.hset(CAMERA_REPORT.format(camera="yard"), mapping=said)
    show(page, "")
    eventually(lambda: "cannot reach 10.0.0.8: timed out" in text(page))
    show(page, "cameras/yard")
    eventually(lambda: "cannot reach 10.0.0.8: timed out" in text(page))
    press(page, "Live")
    eventually(lambda: "This camera cannot be shown live now. " in text(page))
    press(page, "Remove this camera")
    assert "Its footage stays" in confirm(page, sure=False)
    assert client.get("/v1/cameras/yard").is_success
    press(page, "Remove this camera")
    eventually(lambda: page.evaluate("document.activeElement.innerText") == "Cancel")
    confirm(page, sure=True)
    eventually(lambda: client.get("/v1/cameras/yard").status_code == 404)
    eventually(lambda: page.evaluate("location.hash") == "#/")
    show(page, "cameras/gate")
    eventually(lambda: "This camera is not pulled by an agent" in text(page))
    assert "Remove this camera" not in text(page)


def test_a_camera_that_publishes_by_itself_is_erased_on_its_page(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    publish(broker.bootstrap, [verdict("shed", 0), alert("shed", 0)])
    eventually(lambda: client.get("/v1/cameras/shed").is_success)
    show(page, "cameras/shed")
    eventually(lambda: "a program sends it, or it came from a file" in text(page))
    press(page, "Erase this camera")
    assert "Erase shed? Everything it has sent is deleted everywhere, for good" in confirm(page, sure=False)
    assert client.get("/v1/cameras/shed").is_success
    press(page, "Erase this camera")
    confirm(page, sure=True)
    eventually(lambda: client.get("/v1/cameras/shed").status_code == 404)
    eventually(lambda: not client.get("/v1/incidents?camera=shed").json().get("incidents"))
    eventually(lambda: page.evaluate("location.hash") == "#/")
    assert page.evaluate("faults") == []


def test_the_timeline_leads_to_what_a_camera_sent_last(page: Browser, broker: KafkaServer) -> None:
    publish(broker.bootstrap, [verdict("attic", window) for window in range(3)])
    show(page, "cameras/attic?span=60")
    last = "[...document.querySelectorAll('button')].find(one => one.innerText.includes('last footage'))"
    eventually(lambda: page.evaluate(f"Boolean({last})"))
    page.evaluate(f"{last}.click()")
    eventually(lambda: page.evaluate("document.querySelector('.halves canvas') !== null"))
    # The picture above is of that time, not the newest one.
    query = "new URLSearchParams(location.hash.split('?')[1])"
    middle = page.evaluate(f"Number({query}.get('until')) - 500 * Number({query}.get('span'))")
    style = "{dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23'}"
    taken = page.evaluate(f"new Intl.DateTimeFormat(undefined, {style}).format(new Date({middle}))")
    assert taken in page.evaluate("document.querySelector('.halves section').innerText")


def test_a_cameras_time_zone_stands_next_to_the_viewers(page: Browser, client: httpx.Client) -> None:
    wrong = client.put("/v1/cameras/gate", json={"time_zone": "Mars/Olympus"})
    assert (wrong.status_code, "Europe/Berlin" in wrong.text) == (400, True)
    show(page, "cameras/gate")
    eventually(lambda: page.evaluate("document.querySelector('main details summary')?.click() === undefined"))
    page.evaluate(
        "(field => { field.value = 'Asia/Kathmandu'; field.dispatchEvent(new Event('input')); })"
        "(document.querySelector('input[list=time-zones]'))"
    )
    press(page, "Save")
    eventually(lambda: client.get("/v1/cameras/gate").json().get("source", {}).get("time_zone"))
    eventually(lambda: "Asia/Kathmandu)" in text(page))
    identity = client.get("/v1/incidents?camera=gate").json()["incidents"][0]["id"]
    show(page, f"incidents/{identity}")
    eventually(lambda: "Asia/Kathmandu)" in text(page))
    assert client.delete("/v1/cameras/gate").status_code == 204
    assert client.get("/v1/cameras/gate").status_code == 200, "it publishes by itself and stays"


def test_what_needs_memory_is_not_offered_without_it(page: Browser) -> None:
    show(page, "cameras/gate")
    eventually(lambda: "Timeline" in text(page))
    assert "Find what looks like this" not in text(page)
    show(page, "find")
    eventually(lambda: "memory, which this fleet does not keep" in text(page))
    assert page.evaluate("document.querySelector('main form') === null")


def test_what_another_operator_does_shows(page: Browser, client: httpx.Client) -> None:
    identity = client.get("/v1/incidents?camera=gate&state=new").json()["incidents"][0]["id"]
    show(page, f"incidents/{identity}")
    eventually(lambda: "Acknowledge" in text(page))
    answer = client.post(f"/v1/incidents/{identity}/actions", json={"kind": "resolve"})
    assert answer.status_code == 200, answer.text
    eventually(lambda: "Reopen" in text(page))


def test_a_watch_is_made_changed_and_removed(page: Browser, client: httpx.Client) -> None:
    show(page, "watch")
    fill(page, "Name", "bag-left")
    fill(page, "Question", "A bag was left")
    eventually(lambda: "End the question with a question mark" in text(page))
    fill(page, "Question", "Is a bag left behind?")
    fill(page, "Cameras", "gate, hall-*")
    assert "End the question with a question mark" not in text(page)
    press(page, "Save")
    eventually(lambda: client.get("/v1/watches/bag-left").status_code == 200)
    made = client.get("/v1/watches/bag-left").json()["watch"]
    assert (made["question"], made["cameras"]) == ("Is a bag left behind?", ["gate", "hall-*"])
    eventually(lambda: page.evaluate("location.hash") == "#/watch/bag-left")
    eventually(lambda: page.evaluate("document.querySelector('textarea')?.value"))  # it is loaded
    fill(page, "Counts as yes from", "0.8")
    fill(page, "Cameras", "gate")
    fill(page, "Asked about", "strides")
    press(page, "Save")
    shown = "[...document.querySelectorAll('dl')].map(list => list.innerText.split('\\n'))"
    changed = ["Cameras", "gate, hall-* → gate", "Counts as yes from", "60 % → 80 %"]
    changed += ["Asked about", "windows → each stride alone"]
    eventually(lambda: page.evaluate(shown) == [changed])
    assert client.get("/v1/watches/bag-left").json()["watch"]["asked"] == "strides"
    press(page, "Use this version again")
    eventually(lambda: "Version 1 is in the form. Save it to use it again." in text(page))
    assert page.evaluate(BUTTON.format("Pause") + ".disabled"), "it would say that something is saved"
    press(page, "Save it as version 3")
    eventually(lambda: client.get("/v1/watches/bag-left").json()["watch"]["cameras"] == ["gate", "hall-*"])
    back = ["Cameras", "gate → gate, hall-*", "Counts as yes from", "80 % → 60 %"]
    back += ["Asked about", "each stride alone → windows"]
    eventually(lambda: page.evaluate(shown) == [back, changed])
    assert text(page).count("by local") == 3, "each version says who wrote it"
    assert "is in the form" not in text(page)
    eventually(lambda: page.evaluate(BUTTON.format("Save") + ".closest(':disabled') === null"))
    press(page, "Save")
    eventually(lambda: "Nothing was changed, so nothing is saved." in text(page))
    click = "new MouseEvent('click', {bubbles: true})"
    page.evaluate(f"document.querySelector('main svg').dispatchEvent({click})")
    press(page, "Save")
    eventually(lambda: "This zone is not closed" in text(page))
    press(page, "Remove a corner")
    eventually(lambda: "This zone is not closed" not in text(page))
    newest = client.get("/v1/watches/bag-left").json()
    assert len(newest["versions"]) == 3
    # Somebody else saves it meanwhile: the form says so and shows the version; a second press saves over it.
    theirs = {**newest["watch"], "describe": True}
    saved = client.put("/v1/watches/bag-left", params={"base": newest["watch"]["version"]}, json=theirs)
    assert saved.status_code == 200, saved.text
    fill(page, "Quiet time", "95")
    press(page, "Save")
    eventually(lambda: "somebody else changed this watch" in text(page))
    eventually(lambda: "Version 4" in text(page))
    assert len(client.get("/v1/watches/bag-left").json()["versions"]) == 4
    press(page, "Save")
    eventually(lambda: len(client.get("/v1/watches/bag-left").json()["versions"]) == 5)
    eventually(lambda: "somebody else changed" not in text(page))
    press(page, "Pause")
    eventually(lambda: "The watch is paused." in text(page))
    eventually(lambda: not client.get("/v1/watches/bag-left").json().get("enabled"))
    eventually(lambda: "Resume" in text(page))
    press(page, "Remove")
    confirm(page, sure=True)
    eventually(lambda: client.get("/v1/watches/bag-left").status_code == 404)
    eventually(lambda: page.evaluate("location.hash") == "#/watches")


def test_what_was_typed_into_a_watch_is_there_on_return(page: Browser) -> None:
    question = "document.querySelector('textarea')?.value"
    show(page, "watch/lying")
    before = eventually(lambda: page.evaluate(question))
    fill(page, "Question", "Is a cat in view?")
    show(page, "watches")
    asks = "!dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    assert page.evaluate(asks), "the browser asks before it leaves"
    page.evaluate("history.back()")
    eventually(lambda: page.evaluate(question) == "Is a cat in view?")
    assert "Your changes are not saved." in text(page)
    press(page, "Discard the changes")
    eventually(lambda: page.evaluate(question) == before)
    eventually(lambda: "are not saved" not in text(page))
    assert not page.evaluate(asks)


def test_a_backtest_that_no_service_takes_says_what_has_to_run(page: Browser, client: httpx.Client) -> None:
    page.resize(390, 800)
    show(page, "watch")
    fill(page, "Question", "Is the gate shut?")
    tick(page, "Ask it anyway")
    press(page, "Try it on the last day")
    eventually(lambda: "the recordings services, which answer it" in text(page))
    place = (
        "(box => [box.top, box.bottom])(document.querySelector('[aria-live] .bad').getBoundingClientRect())"
    )
    eventually(lambda: 0 <= page.evaluate(place)[0] < page.evaluate(place)[1] <= 800)
    press(page, "Cancel")
    eventually(lambda: "the recordings services, which answer it" not in text(page))
    page.resize(1280, 900)
    eventually(lambda: [job["state"] for job in client.get("/v1/backtests").json()["jobs"]] == ["cancelled"])


def test_a_backtest_is_judged_and_a_threshold_chosen(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    """The fleet's answer is written here; what the page makes of it is counted by hand."""
    show(page, "watch")
    fill(page, "Question", "Which gate is open?")
    eventually(lambda: "Ask a yes/no question" in text(page))
    tick(page, "Ask it anyway")
    assert page.evaluate(BUTTON.format("Try it on the last day") + ".disabled"), "no model answers that"
    fill(page, "Question", "Is the gate open?")
    press(page, "Try it on the last day")
    (job,) = eventually(
        lambda: [
            one for one in client.get("/v1/backtests").json().get("jobs", ()) if one["state"] == "waiting"
        ]
    )
    assert job["request"]["backtest"]["watch"]["rule"]["threshold"] == 0.3
    answers = RecordingAnswers(id=job["request"]["id"], state=RecordingAnswers.STATE_DONE, parts=1, done=1)
    past = answers.backtest
    past.threshold, past.cameras, past.watched_s, past.incidents_total = 0.3, 1, 43_200, 4
    for number, score in enumerate((0.35, 0.65, 0.7, 0.9)):
        moment = past.incidents.add(camera="gate", score=score, peak=score, windows=2)
        moment.opened.FromMilliseconds(BEGIN_MS + 60_000 * number)
        moment.end.FromMilliseconds(BEGIN_MS + 60_000 * number + 20_000)
    past.labels.add(camera="gate", watch="lying", incident="i", right=False, score=0.5)
    Writer({"bootstrap.servers": broker.bootstrap}).write(ANSWERS.name, {answers.id: to_json(answers)})
    eventually(lambda: "Precision" in text(page))
    for place, button in ((0, 0), (1, 0), (2, 1), (3, 0)):  # right, right, wrong, right
        row = f"document.querySelectorAll('section li')[{place}]"
        page.evaluate(f"{row}.querySelectorAll('.row button')[{button}].click()")
    told = "document.querySelector('section dl').innerText"
    eventually(lambda: "2 of 3 reported and marked" in page.evaluate(told))
    eventually(lambda: "2 of 3 right moments" in page.evaluate(told))
    assert "No threshold separates these" in text(page)
    assert "6.0" in page.evaluate(told)  # three reach 60 % in half a day
    fill(page, "Counts as yes from", "0.8")
    eventually(lambda: "1 of 1 reported and marked" in page.evaluate(told))
    assert "1 of 3 right moments" in page.evaluate(told)
    assert "2.0" in page.evaluate(told)
    fill(page, "Counts as yes from", "0.4")
    eventually(lambda: "2 of 4 reported and marked" in page.evaluate(told))  # with the earlier opinion
    # Another try of the same question knows what was judged; the same button takes it back.
    press(page, "Try it on the last day")
    (job,) = eventually(
        lambda: [
            one for one in client.get("/v1/backtests").json().get("jobs", ()) if one["state"] == "waiting"
        ]
    )
    judged = job["request"]["backtest"]["labels"]
    assert sorted(one.get("right", False) for one in judged) == [False, True, True, True]
    answers.id = job["request"]["id"]
    for one in judged:
        past.labels.add(camera="gate", watch=one["watch"], incident=one["incident"], right=True, score=0.9)
    Writer({"bootstrap.servers": broker.bootstrap}).write(ANSWERS.name, {answers.id: to_json(answers)})
    eventually(lambda: "2 of 4 reported and marked" in text(page))
    pressed = "[...document.querySelectorAll('section li [aria-pressed=true]')].map(one => one.innerText)"
    assert page.evaluate(pressed) == ["✓ Right", "✓ Right", "✗ Wrong", "✓ Right"]
    page.evaluate("document.querySelectorAll('section li [aria-pressed=true]')[2].click()")
    eventually(lambda: "2 of 3 reported and marked" in page.evaluate(told))
    labels = client.get("/v1/labels").json()["labels"]
    left = [one.get("right", False) for one in labels if one["question"] == "Is the gate open?"]
    assert left == [True, True, True]
    page.evaluate("document.querySelector('section li button').click()")
    eventually(lambda: "Picture from " in page.evaluate("document.querySelector('section li').innerText"))
    assert "from how its incident was closed" not in text(page)
    raised = alert("gate", 5, watch="gate-open")
    raised.question = "Is the gate open?"
    publish(broker.bootstrap, [raised])
    eventually(lambda: client.get(f"/v1/incidents/{raised.incident}").is_success)
    assert client.post(f"/v1/incidents/{raised.incident}/actions", json={"kind": "resolve"}).is_success
    press(page, "Try it on the last day")
    (job,) = eventually(
        lambda: [
            one for one in client.get("/v1/backtests").json().get("jobs", ()) if one["state"] == "waiting"
        ]
    )
    answers.id = job["request"]["id"]
    moment = past.incidents.add(camera="gate", score=0.95, peak=0.95, windows=2)
    moment.opened.CopyFrom(raised.start)
    moment.end.CopyFrom(raised.end)
    Writer({"bootstrap.servers": broker.bootstrap}).write(ANSWERS.name, {answers.id: to_json(answers)})
    origin = "[...document.querySelectorAll('section li small a')].map(one => one.hash)"
    eventually(lambda: page.evaluate(origin) == [f"#/incidents/{raised.incident}"])


def test_a_recording_is_asked_about_and_its_answers_are_files(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    """The fleet's answers are written here."""
    show(page, "recordings")
    fill(page, "Addresses", "https://films.example/yard.mp4")
    fill(page, "Questions", "Is anyone {i}lying<b> there?")
    press(page, "Ask")
    (job,) = eventually(lambda: client.get("/v1/recordings").json().get("jobs"))
    identity = job["request"]["id"]
    writer = Writer({"bootstrap.servers": broker.bootstrap})
    answers = RecordingAnswers(id=identity, state=RecordingAnswers.STATE_RUNNING, parts=3, done=1)
    writer.write(ANSWERS.name, {identity: to_json(answers)})
    eventually(lambda: "1 of 3 parts" in text(page))
    answers.state, answers.done = RecordingAnswers.STATE_DONE, 3
    recording = answers.recordings.add(uri=job["request"]["uris"][0], seconds=72.0)
    answer = recording.answers.add(question=job["request"]["questions"][0], p_yes=0.9)
    answer.yes.add(start_s=24.0, end_s=48.5)
    for number, p_yes in enumerate((0.1, 0.9, None)):
        part = recording.parts.add(number=number, reason="" if p_yes is not None else "=broken off")
        part.span.start_s, part.span.end_s = 24.0 * number, 24.0 * (number + 1)
        if p_yes is not None:
            part.answers.add(p_yes=p_yes)
    for share in ("0", "1", "2"):
        answer.answers.add(answer=share, p=0.5 if share == "2" else 0.25)
    writer.write(ANSWERS.name, {identity: to_json(answers)})
    eventually(lambda: "0:24–0:48" in text(page))
    assert "0:48–1:12: =broken off" in text(page)
    shares = page.evaluate("[...document.querySelectorAll('main ul[title] li')].map(row => row.innerText)")
    assert shares[0].split() == ["2", "50", "%"]
    bar = "[...document.querySelectorAll('main ul[title] .bar')].map(bar => bar.style.width)"
    assert page.evaluate(bar) == ["50%", "25%", "25%"]
    bars = "[...document.querySelectorAll('main svg rect.yes')]"
    ((begin, width),) = page.evaluate(
        f"{bars}.map(bar => [bar.x, bar.width].map(side => side.baseVal.value))"
    )
    assert (begin, width) == (pytest.approx(1000 / 3, abs=1), pytest.approx(1000 / 3, abs=2))
    page.evaluate(
        "window.saved = []; URL.createObjectURL = blob => (saved.push(blob), 'blob:none'); undefined"
    )
    press(page, "Subtitles (SRT)")
    press(page, "Table (CSV)")
    srt, table = page.evaluate("Promise.all(saved.map(blob => blob.text()))")
    assert srt == "1\n00:00:24,000 --> 00:00:48,500\nIs anyone (i)lying<\u2060b> there?\n"
    rows = list(csv.reader(io.StringIO(table)))
    assert [row[2:5] for row in rows[1:]] == [["0", "24", "0.1"], ["24", "48", "0.9"], ["48", "72", ""]]
    assert rows[3][6] == "'=broken off"  # no spreadsheet computes it
    assert page.evaluate("faults") == []


def test_tables_hold_all_that_was_filtered_not_one_page(
    page: Browser, broker: KafkaServer, client: httpx.Client
) -> None:
    publish(broker.bootstrap, [alert("many", number) for number in range(120)])
    eventually(
        lambda: client.get("/v1/incidents", params={"camera": "many", "limit": 500}).text.count('"id"') >= 120
    )
    catch = "window.saved = []; URL.createObjectURL = blob => (saved.push(blob), 'blob:none'); undefined"
    show(page, "incidents?camera=many")
    eventually(lambda: page.evaluate("document.querySelectorAll('main [id^=incident-]').length") == 100)
    page.evaluate(catch)
    press(page, "CSV")
    eventually(lambda: page.evaluate("saved.length"))
    rows = list(csv.DictReader(io.StringIO(page.evaluate("saved[0].text()"))))
    assert (len(rows), {row["camera"] for row in rows}) == (120, {"many"})
    show(page, "operations?tab=coverage")
    page.evaluate(catch)
    press(page, "Table (CSV)")
    table = list(csv.DictReader(io.StringIO(page.evaluate("saved[0].text()"))))
    assert {row["camera"] for row in table} >= {"gate", f"{HOSTILE}"}
    assert all(float(row["answered_s"]) >= 0 for row in table)
    assert page.evaluate("faults") == []


def test_a_file_is_uploaded_asked_about_and_cut(
    page: Browser, broker: KafkaServer, client: httpx.Client, tmp_path: Path
) -> None:
    film = tmp_path / "yard 1.ts"
    film.write_bytes(noise(4, (320, 176)))
    show(page, "recordings")
    choose(page, film)
    uri = eventually(lambda: page.evaluate("document.querySelector('textarea').value"))
    assert uri.endswith("-yard-1.ts")
    assert Path(urlsplit(uri).path).read_bytes() == film.read_bytes()
    fill(page, "Questions", "Is anyone there?")
    press(page, "Ask")

    def jobs() -> list[dict[str, Any]]:
        return list(client.get("/v1/recordings").json().get("jobs", []))

    eventually(lambda: page.evaluate("location.hash").startswith("#/recordings/"))
    (job,) = (job for job in jobs() if job["request"]["uris"] == [uri])
    identity = job["request"]["id"]
    answers = RecordingAnswers(id=identity, state=RecordingAnswers.STATE_DONE, parts=1, done=1)
    recording = answers.recordings.add(uri=uri, seconds=4.0)
    recording.answers.add(question="Is anyone there?", p_yes=0.9).yes.add(start_s=2.0, end_s=3.0)
    answers.recordings.add(uri="file:///etc/passwd")
    Writer({"bootstrap.servers": broker.bootstrap}).write(ANSWERS.name, {identity: to_json(answers)})
    eventually(lambda: "Yes at" in text(page))
    press(page, "▶ 0:02–0:03")
    eventually(lambda: page.evaluate("document.querySelector('video')?.duration") or "format" in text(page))
    saved = page.evaluate("document.querySelector('main a[download]').download")
    assert saved == f"{Path(urlsplit(uri).path).name}-2-3.mp4"
    where = f"/v1/recordings/{identity}/clip"
    cut = client.get(where, params={"recording": 0, "start_s": 2, "end_s": 3})
    assert (cut.status_code, cut.headers["content-type"]) == (200, "video/mp4"), cut.text[:300]
    with av.open(io.BytesIO(cut.content)) as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 10, "ten pictures a second, a keyframe each second"
    for span, status, words in (
        ({"recording": 1, "start_s": 0, "end_s": 1}, 409, "only from uploads and web addresses"),
        ({"recording": 2, "start_s": 0, "end_s": 1}, 404, "about only 2 recordings"),
        ({"recording": 0, "start_s": 0, "end_s": 301}, 400, "at most 300 seconds"),
        ({"recording": 0, "start_s": 90, "end_s": 95}, 400, "no clip of"),
    ):
        refused = client.get(where, params=span)
        assert (refused.status_code, words in refused.text) == (status, True), refused.text
    show(page, "recordings")
    film.rename(tmp_path / "yard.txt")
    choose(page, tmp_path / "yard.txt")
    eventually(lambda: "does not end like a video file" in text(page))
    assert page.evaluate("faults") == []


def test_a_file_becomes_footage_of_a_camera(page: Browser, broker: KafkaServer, tmp_path: Path) -> None:
    def sent() -> list[Any]:
        return [m for m in records(broker.bootstrap, SEGMENTS.name) if m.key() == b"stage"]

    (film := tmp_path / "stage.ts").write_bytes(clip(100))
    show(page, "start")
    fill(page, "Name of the camera", "stage")
    choose(page, film)
    press(page, "Send it")
    eventually(lambda: "stage has 0:04 of footage" in text(page))
    assert len(sent()) == 2
    (hours := tmp_path / "hours.ts").write_bytes(clip(600, fps=1))
    choose(page, hours)
    press(page, "Send it")
    eventually(lambda: "would overlap camera stage's newest footage: send it again in " in text(page))
    assert len(sent()) == 2
    choose(page, film)
    again = BUTTON.format("Send it again")
    eventually(lambda: page.evaluate(f"{again}?.click()") or len(sent()) == 4, every=1.0)
    (other := tmp_path / "other.ts").write_bytes(b"no film")
    choose(page, other)
    press(page, "Send it")
    eventually(lambda: "the film cannot be read" in text(page))
    assert page.evaluate("faults") == []


def test_many_tabs_share_one_stream_of_events(
    page: Browser, broker: KafkaServer, process: GatewayProcess
) -> None:
    """A browser opens six connections to a host: with a stream in each tab, the seventh showed nothing."""
    # Of all incidents, of which the file has more, the page shows a hundred.
    shown = f"{process.url}/#/incidents?camera=annex"
    publish(broker.bootstrap, [alert("annex", 49)])
    listed = "document.querySelectorAll('[id^=incident-]').length"

    def arrives(tabs: list[Browser], number: int) -> None:
        before = [tab.evaluate(listed) for tab in tabs]
        publish(broker.bootstrap, [alert("annex", number)])
        for tab, count in zip(tabs, before, strict=True):
            eventually(lambda tab=tab, count=count: tab.evaluate(listed) == count + 1)  # type: ignore[misc]

    with ExitStack() as later:
        with page.tab(shown) as first:
            tabs = [later.enter_context(page.tab(shown)) for _ in range(7)]
            for tab in [first, *tabs]:
                eventually(lambda tab=tab: tab.evaluate(listed) > 0)  # type: ignore[misc]
            arrives(tabs, 50)
        arrives(tabs, 51)


def test_signing_out_ends_the_session(page: Browser, client: httpx.Client) -> None:
    press(page, "Sign out")
    confirm(page, sure=False)
    assert client.get("/v1/session").status_code == 200
    press(page, "Sign out")
    confirm(page, sure=True)
    eventually(lambda: "You are signed out" in text(page))
    assert client.get("/v1/session").status_code == 401
