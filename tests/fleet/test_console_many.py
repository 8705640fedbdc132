"""The console in a real Chromium over 1 000 cameras and 100 000 incidents, put into the history's tables."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import sqlalchemy

from lookout.services.gateway.console_files import BUILT
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.records import Records
from lookout.services.gateway.history.tables import CAMERAS, INCIDENTS, QUESTIONS
from lookout.wire import VERDICTS, to_json
from tests.browser import CHROMIUM, Browser
from tests.eventually import eventually
from tests.fleet.console_case import console, press, show
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_records import BEGIN_MS, alert, verdict

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="the console is not built: make console"),
]
CAMERA_COUNT, WATCH_COUNT = 1000, 3
INCIDENT_COUNT = 100_000
#: rows that the page holds at a time
SHOWN = 500
CELLS = """[...document.querySelectorAll('.camera')].map(cell => {
  const box = cell.getBoundingClientRect();
  return [cell.querySelector('.name').innerText, [Math.round(box.top), Math.round(box.left)]];
})"""
ROWS = "document.querySelectorAll('.list li a').length"


@dataclass(frozen=True, slots=True)
class Message:
    """A record as Kafka's client gives it."""

    at: int
    name: bytes
    body: bytes

    def topic(self) -> str:
        return VERDICTS.name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes:
        return self.body

    def timestamp(self) -> tuple[int, int]:
        return 1, BEGIN_MS + 3_600_000


def fill(database: Database) -> None:
    """One verdict of every watch on every camera, and a year's incidents."""
    names = [f"camera-{number:04d}" for number in range(CAMERA_COUNT)]
    records = Records(database)
    with database.writing() as connection:
        transaction = records.begin(connection)
        for number in range(CAMERA_COUNT * WATCH_COUNT):
            camera, watch = divmod(number, WATCH_COUNT)
            body = to_json(verdict(names[camera], 0, (camera % 100) / 100, watch=f"watch-{watch}"))
            records.take(transaction, Message(number, names[camera].encode(), body))
        records.end(transaction)
    now_ms = round(time.time() * 1000)
    with database.writing() as connection:
        keys = {row.id: row.key for row in connection.execute(sqlalchemy.select(CAMERAS.c.id, CAMERAS.c.key))}
        question = connection.execute(QUESTIONS.insert().values(text="Is anyone there?"))
        question_key = (question.inserted_primary_key or (0,))[0]
        rows = [
            incident(number, names[number % CAMERA_COUNT], keys, question_key, now_ms)
            for number in range(INCIDENT_COUNT)
        ]
        connection.execute(INCIDENTS.insert(), rows)


def incident(number: int, camera: str, keys: dict[str, int], question: int, now_ms: int) -> dict[str, Any]:
    """A row of the table of incidents."""
    message = alert(camera, number)
    start_ms = now_ms - 315_000 * number  # all of them: a year
    return {
        "id": message.incident,
        "camera": keys[camera],
        "watch": "watch-0",
        "question": question,
        "start_ms": start_ms,
        "end_ms": start_ms + 10_000,
        "closed": True,
        "peak": 0.9,
        "state": 1 + number % 5,
        "assignee": "",
        "right": None,
        "notes": 0,
        "alert": to_json(message),
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, kafka: str, redis_url: str) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("many")
    database = Database(f"sqlite:///{folder / 'history.db'}")
    database.migrate()
    fill(database)
    database.close()
    with ExitStack() as stack:
        process: GatewayProcess = gateway(stack, folder, kafka, redis_url)
        client: httpx.Client = stack.enter_context(process.signed_in())
        yield stack.enter_context(console(process, client, folder / "profile"))


def key(page: Browser, name: str) -> None:
    """Press a key."""
    page.evaluate(f"dispatchEvent(new KeyboardEvent('keydown', {{key: {name!r}}}))")


def more(page: Browser) -> None:
    """Ask for the next hundred, and wait for them."""
    last = "[...document.querySelectorAll('.list li')].at(-1).id"
    before = page.evaluate(last)
    press(page, "Show more")
    eventually(lambda: page.evaluate(last) != before)


def test_a_wall_of_a_thousand_holds_few_cameras_each_in_its_place(page: Browser) -> None:
    page.resize(1440, 900)
    show(page, "")
    eventually(lambda: f"{CAMERA_COUNT} / {CAMERA_COUNT}" in str(page.evaluate("document.body.innerText")))
    names = sorted(f"camera-{number:04d}" for number in range(CAMERA_COUNT))
    for share in (0.0, 0.37, 1.0):
        page.evaluate(f"scrollTo(0, {share} * (document.documentElement.scrollHeight - innerHeight))")
        wanted = names[round(share * (CAMERA_COUNT - 1))]
        eventually(lambda name=wanted: name in dict(page.evaluate(CELLS)))  # type: ignore[misc]
        cells = page.evaluate(CELLS)
        assert len(cells) < 60
        # Read as lines of text, the places of the cells are the order of the names, with none left out.
        inside = [name for name, _ in sorted(cells, key=lambda cell: cell[1])]
        first = names.index(inside[0])
        assert inside == names[first : first + len(inside)]
        assert len({tuple(place) for _, place in cells}) == len(cells)
    page.evaluate("scrollTo(0, 0)")
    show(page, "?camera=camera-0999")
    eventually(lambda: page.evaluate("document.querySelectorAll('.camera').length") == 1)
    assert page.evaluate("faults") == []


def test_the_page_holds_few_incidents_however_far_one_reads(page: Browser) -> None:
    show(page, "incidents")
    eventually(lambda: page.evaluate(ROWS) == 100)
    newest = page.evaluate("document.querySelector('.list li').id")
    for _ in range(8):
        more(page)
    assert page.evaluate(ROWS) == SHOWN
    press(page, "Back to the newest")
    eventually(lambda: page.evaluate("document.querySelector('.list li').id") == newest)
    assert page.evaluate("faults") == []


def test_keys_go_on_after_the_last_row_and_acts_keep_ones_place(page: Browser) -> None:
    show(page, "incidents")
    eventually(lambda: page.evaluate(ROWS) == 100)
    more(page)
    for _ in range(3):
        more(page)
    last = str(page.evaluate("[...document.querySelectorAll('.list li')].at(-1).id")).removeprefix(
        "incident-"
    )
    page.evaluate(f"location.hash = '#/incidents/{last}'")
    eventually(lambda: page.evaluate("document.querySelectorAll('.list li.chosen').length") == 1)
    key(page, "j")
    chosen = eventually(
        lambda: (place := str(page.evaluate("location.hash")).split("/")[2].split("?")[0]) != last and place
    )
    assert page.evaluate(f"document.getElementById('incident-{chosen}') !== null"), "it was loaded"
    rows = "[...document.querySelectorAll('.list li')]"
    new = f"{rows}.findLast(row => row.querySelector('.badge').innerText === 'new')"
    row = page.evaluate(f"{new}.id")
    page.evaluate(f"location.hash = '#/incidents/{row.removeprefix('incident-')}'")
    eventually(lambda: page.evaluate(f"document.getElementById('{row}').classList.contains('chosen')"))
    key(page, "r")
    badge = f"document.querySelector('#{row} .badge').innerText"
    eventually(lambda: page.evaluate(badge) == "resolved")
    assert page.evaluate(ROWS) > 100, "the list did not begin again"
    assert page.evaluate("faults") == []


def test_filters_find_one_cameras_incidents_among_all(page: Browser) -> None:
    show(page, "incidents?camera=camera-0007&state=acknowledged")

    def cameras() -> Any:
        return page.evaluate(
            "[...new Set([...document.querySelectorAll('.list li .name')].map(n => n.textContent))]"
        )

    eventually(lambda: cameras() == ["camera-0007"])
    shown = page.evaluate(
        "[...new Set([...document.querySelectorAll('.list li .badge')].map(n => n.textContent))]"
    )
    assert shown == ["acknowledged"]


def test_the_table_has_every_incident(page: Browser) -> None:
    show(page, "incidents?state=any")
    eventually(lambda: page.evaluate(ROWS) == 100)
    page.evaluate(
        "window.saved = []; URL.createObjectURL = blob => (saved.push(blob), 'blob:none'); undefined"
    )
    press(page, "CSV")
    eventually(lambda: page.evaluate("saved.length") == 1, seconds=300.0)
    table = list(csv.DictReader(io.StringIO(page.evaluate("saved[0].text()"))))
    assert len({row["id"] for row in table}) == INCIDENT_COUNT
    page.evaluate("saved.length = 0")
    page.call("HeapProfiler.collectGarbage")
    heap = page.call("Runtime.getHeapUsage")["usedSize"]
    assert heap < 64 << 20, "what was saved does not stay in the page"
    assert page.evaluate("faults") == []
