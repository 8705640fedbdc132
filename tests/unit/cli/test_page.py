"""The page of a run: right numbers, nothing from outside, nothing that escapes."""

from __future__ import annotations

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lookout.cli.report.page import (
    SHOTS,
    PageFacts,
    Truth,
    choose_shots,
    page_data,
    render,
    saved_patches,
    saved_tokens,
    stride_us,
    write_page,
)
from lookout.cli.report.pictures import data_uri
from lookout.cli.report.run import CameraRun, EvidenceFrame, FleetRecord
from lookout.v1.labels_pb2 import Label
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import VERDICTS, message_kind, to_json
from tests import mutations
from tests.browser import CHROMIUM, browser
from tests.unit.cli.runs import FakeMessage, camera_records, example_run, verdict


class FakeAlbum:
    """Pictures without a fleet."""

    def filmed(self, camera: CameraRun, shots: list[EvidenceFrame]) -> dict[EvidenceFrame, np.ndarray]:
        return {shot: np.full((24, 32, 3), 90, np.uint8) for shot in shots}

    def seen(self, camera: CameraRun, shots: list[EvidenceFrame]) -> dict[EvidenceFrame, np.ndarray]:
        return {shot: np.full((8, 8, 3), 90, np.uint8) for shot in shots[1:]}


FACTS = PageFacts("A <b>test</b>", "lookout demo", truth={"room": Truth({"someone-lying": [(15.0, 34.0)]})})


def test_what_the_page_says_fits_what_there_is() -> None:
    run = FleetRecord()
    for message in camera_records("yard", 10, {"a-person": (2.0, 6.0)}):
        run.take(message)  # type: ignore[arg-type]
    facts = PageFacts("Seen", "lookout report")
    text = render(page_data(run, None, facts), facts)
    assert "1 camera, 0:10 minutes of footage, 1 standing question," in text
    assert "known to be true" not in text
    both = render(page_data(example_run(), None, FACTS), FACTS)
    assert "2 cameras," in both
    assert "3 standing questions," in both
    assert "known to be true" in both


def test_an_incident_that_a_person_called_wrong_is_marked_and_counted_apart() -> None:
    run = example_run()
    mistaken, *others = [incident for each in run.cameras.values() for incident in each.incidents]
    assert others
    run.labels = {mistaken: Label(incident=mistaken, right=False, labelled_by="Kim <k>")}
    run.labels[others[0]] = Label(incident=others[0], right=True)
    data = page_data(run, None, FACTS)
    opinions = {one["id"]: one["opinion"] for group in data["incidents"].values() for one in group}
    assert opinions == dict.fromkeys(others[1:], None) | {mistaken: "wrong", others[0]: "right"}
    text = render(data, FACTS)
    assert f"<b>{len(others)}</b><span>incidents</span>" in text
    assert "<b>1</b><span>more that a person called wrong</span>" in text
    assert "called wrong by Kim &lt;k&gt;" in text
    assert text.count('<li class="wrong">') == 1


def test_the_numbers_are_those_of_the_records() -> None:
    run = example_run()
    data = page_data(run, None, FACTS)
    room = next(camera for camera in data["cameras"] if camera["id"] == "room")
    assert room["seconds"] == room["length"] == 48
    assert room["windows"] == 24
    assert room["frames"] == 24 * 25
    lane = next(lane for lane in room["lanes"] if lane["watch"] == "someone-lying")
    assert [point[2] for point in lane["points"]][-1] is None
    assert {round(point[1] - point[5], 3) for point in lane["points"][5:-1]} == {10.0}
    assert lane["points"][-1][3] == "gap"
    assert lane["incidents"][0]["a"] == 17.0
    assert lane["incidents"][0]["b"] == 34.0
    assert lane["incidents"][0]["peak"] == 0.97
    assert lane["incidents"][0]["closed"] == "cleared"
    assert lane["truth"] == [[15.0, 34.0]]
    assert data["totals"]["answers"] == 3 * (24 + 20), "outcomes without an answer are none"
    assert stride_us(run.cameras["room"]) == 2_000_000
    kept = sum(shot.keep.sum() for shot in run.cameras["room"].shots)
    assert saved_patches(run.cameras["room"]) == pytest.approx(1 - kept / (24 * 4 * 16))
    assert 0 < (saved_tokens(run.cameras["room"]) or 0) < 1
    assert data["totals"]["seconds"] == 88
    assert {camera: len(group) for camera, group in data["incidents"].items()} == {"room": 2, "yard": 2}
    for incidents in data["incidents"].values():
        assert [incident["a"] for incident in incidents] == sorted(incident["a"] for incident in incidents)


def test_a_run_is_finished_when_every_epoch_and_watch_ended() -> None:
    run, watches = FleetRecord(), {"a": (1.0, 3.0), "b": (0.0, 0.0)}
    records = list(camera_records("x", 20, watches))
    for message in records[:-1]:
        run.take(message)  # type: ignore[arg-type]
        if run.cameras and message is not records[-2]:
            assert not run.cameras["x"].finished([*watches, "c"])
    run.take(records[-1])  # type: ignore[arg-type]
    assert run.cameras["x"].finished(watches)
    assert len(run.cameras["x"].segments) == 10


def test_dead_letters_count_as_accounted_for_and_broken_records_are_left_out() -> None:
    run = FleetRecord()
    head = (
        ("lookout-reason", b"no-keyframe"),
        ("lookout-source-partition", b"3"),
        ("lookout-source-offset", b"17"),
    )
    run.take(FakeMessage("camera.segments.v1.dlq", b"bytes", 0, "gate", head))  # type: ignore[arg-type]
    run.take(FakeMessage("verdicts.v1", b"not json"))  # type: ignore[arg-type]
    assert run.cameras["gate"].segments == {("camera.segments.v1", 3, 17)}
    assert page_data(run, None, FACTS)["cameras"][0]["dead"][0]["reason"] == "no-keyframe"


def test_key_frames_are_few_in_order_and_hold_the_evidence() -> None:
    camera = example_run().cameras["room"]
    chosen = choose_shots(camera)
    assert 5 <= len(chosen) <= SHOTS
    assert [shot.time_us for shot, _ in chosen] == sorted(shot.time_us for shot, _ in chosen)
    evidence = {incident.question: incident.evidence[0] for incident in camera.incidents.values()}
    assert {question: shot.time_us for shot, question in chosen if question} == evidence


def test_the_page_is_whole_and_asks_nobody(tmp_path: Path) -> None:
    path = write_page(tmp_path / "deep" / "page.html", example_run(), FakeAlbum(), FACTS)  # type: ignore[arg-type]
    text = path.read_text()

    class Parser(HTMLParser):
        asked: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.asked += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]

    parser = Parser()
    parser.feed(text)
    assert all(asked.startswith(("data:", "#")) for asked in parser.asked)
    assert not re.search(r"""(?:url\(|@import|fetch\(|src\s*=)\s*["']?https?:""", text)
    assert "A &lt;b&gt;test&lt;/b&gt;" in text
    payload = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert payload is not None
    shots = json.loads(payload[1])["cameras"][0]["shots"]
    assert shots[0]["seen"] is None
    assert shots[1]["seen"].startswith("data:image/jpeg;base64,")
    assert len(shots[0]["keep"]) == shots[0]["rows"] * shots[0]["cols"] == 16


def test_a_long_list_of_incidents_unfolds_and_leads_to_its_cameras() -> None:
    run = FleetRecord()
    for number in range(30):
        for message in camera_records(f"cam-{number}", 20, {"someone-lying": (4.0, 12.0)}):
            run.take(message)  # type: ignore[arg-type]
    data = page_data(run, None, FACTS)
    text = render(data, FACTS)
    assert len(data["incidents"]) == 30
    assert re.findall(r"<summary>(.*?)</summary>", text) == ["6 more cameras"]
    links = re.findall(r'<a href="#(cam-\d+)" data-camera="(.*?)"', text)
    assert {camera for _, camera in links} == set(run.cameras)
    for place, camera in links:
        assert re.search(rf'id="{place}" [^>]*>\s*<div class="head">\s*<h3>{camera}</h3>', text)


def test_what_a_camera_says_cannot_end_the_script() -> None:
    run = example_run()
    run.questions["someone-lying"] = "</script><script>alert(1)</script>"
    text = render(page_data(run, None, FACTS), FACTS)
    assert "<script>alert(1)" not in text


@pytest.mark.slow
@pytest.mark.parametrize("text", ["\u202egnp\u202c", "\x1b[2J", "\x9b", "a\u2066b\u2069", "\x07\x00"])
def test_what_a_camera_says_turns_no_text_on_the_page(text: str) -> None:
    run = example_run()
    run.questions["someone-lying"] = text
    page = render(page_data(run, None, FACTS), FACTS)
    assert not set(page) & set("\u202e\u202c\x1b\x9b\u2066\u2069\x07\x00")
    assert not any(
        f"\\u{ord(letter):04x}" in page.replace("\\\\", "") for letter in text if not letter.isprintable()
    )


def test_strange_records_are_left_out_and_the_page_is_written() -> None:
    """Records that pass the wire's door and still fit together with nothing."""
    chance = random.Random(7)
    run = FleetRecord()
    for message in camera_records("room", 48, {"someone-lying": (15.0, 34.0)}):
        run.take(message)  # type: ignore[arg-type]
        kind = message_kind(message.name)
        if kind is None or message.data is None:
            continue
        changes = mutations.JSON if message.data.startswith(b"{") else mutations.BINARY
        for name, change in changes.items():
            if name not in ("large-text", "long-list", "nested"):
                strange = FakeMessage(message.name, change(message.data, kind, chance), message.at)
                run.take(strange)  # type: ignore[arg-type]
    headers = (("lookout-source-partition", b"\x1b[2J"), ("lookout-source-offset", b"9" * 5000))
    run.take(FakeMessage("camera.segments.v1.dlq", b"", 0, "room", headers))  # type: ignore[arg-type]
    assert "room" in render(page_data(run, None, FACTS), FACTS)


HOSTILE = (
    "<script>hit('script')</script>",
    "<img src=x onerror=hit('image')>",
    "\"><svg onload=hit('svg')>",
    "' onmouseover='hit(1)' autofocus onfocus='hit(2)",
    "</script><script>hit('end')</script>",
    "</title></style><script>hit('title')</script>",
    "javascript:hit('link')",
    "{{7*7}}${hit('template')}",
    "<!--<script>hit('comment')",
    "&lt;script&gt;hit('entity')&lt;/script&gt;",
    "\u2028hit('line')\u2029",
    "a" * 5000,
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_names_that_are_programs_do_nothing_in_a_browser(tmp_path: Path) -> None:
    """Cameras, watches, questions, reasons of dead letters and file names; no request leaves the page."""
    run = FleetRecord()
    for number, text in enumerate(HOSTILE):
        camera, watch = text[:190], f"{text[:100]}{number}"
        for message in camera_records(camera, 10, {watch: (2.0, 6.0)}):
            run.take(message)  # type: ignore[arg-type]
        run.questions[watch] = text
        letter = (("lookout-reason", text.encode()), ("lookout-detail", text.encode()))
        run.take(FakeMessage("frames.v1.dlq", b"", 0, camera, letter))  # type: ignore[arg-type]
    facts = PageFacts(HOSTILE[0], HOSTILE[1])
    page = write_page(tmp_path / "page.html", run, FakeAlbum(), facts)  # type: ignore[arg-type]
    (tmp_path / "profile").mkdir()
    with browser(tmp_path / "profile") as chromium:
        chromium.call("Page.enable")
        chromium.call(
            "Page.addScriptToEvaluateOnNewDocument", source="window.hits = []; window.hit = x => hits.push(x)"
        )
        chromium.open(page)
        chromium.evaluate(
            "document.querySelectorAll('*').forEach(one => ['mouseover', 'focus', 'click'].forEach("
            "kind => one.dispatchEvent(new Event(kind, {bubbles: true}))))"
        )
        assert chromium.evaluate("hits") == []
        assert chromium.evaluate("document.querySelectorAll('script').length") == page.read_text().count(
            "</script>"
        )
        links = chromium.evaluate("[...document.querySelectorAll('a')].map(one => one.href)")
        assert not [link for link in links if link.startswith("javascript:")]
        loaded = chromium.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
        assert not [name for name in loaded if not name.startswith("data:")]
        shown = chromium.evaluate("document.body.innerText")
        assert HOSTILE[0] in shown


def test_an_empty_run_is_a_page_too() -> None:
    assert "0 cameras" in render(page_data(FleetRecord(), None, FACTS), FACTS)


def test_pictures_are_jpeg_in_the_page() -> None:
    assert data_uri(np.zeros((4, 4, 3), np.uint8)).startswith("data:image/jpeg;base64,/9j/")


def test_saved_flops_count_the_questions_on_both_sides() -> None:
    """A window that computed all of itself has saved nothing, however many questions it was asked."""
    run = FleetRecord()
    for watch in ("fall", "fire", "crowd"):
        message = verdict("gate", watch, 0, 0.5)
        message.cost.flops_vision, message.cost.flops_prefill, message.cost.flops_question = 300, 700, 5000
        message.cost.flops_dense = 1000
        run.take(FakeMessage(VERDICTS.name, to_json(message), 0, "gate"))  # type: ignore[arg-type]
    skipped = verdict("gate", "fall", 1, 0.0)
    skipped.outcome = Verdict.OUTCOME_SKIPPED
    skipped.cost.Clear()
    skipped.cost.flops_vision = 4000
    totals = page_data(run, None, PageFacts("t", "c"))["totals"]
    assert totals["flops_saved"] == pytest.approx(0.0)
    run.take(FakeMessage(VERDICTS.name, to_json(skipped), 1, "gate"))  # type: ignore[arg-type]
    data = page_data(run, None, PageFacts("t", "c"))
    assert data["totals"]["flops_saved"] == pytest.approx(1 - (1000 + 4000 + 15000) / (1000 + 15000))
    assert (data["totals"]["windows"], len(data["cameras"][0]["costs"])) == (1, 1)
