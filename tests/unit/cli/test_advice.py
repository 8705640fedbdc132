"""What services advise about cameras reaches the console of `lookout up`."""

from __future__ import annotations

import json
from pathlib import Path

from lookout.cli.advice import CameraAdvice

WARNING = {
    "event": "two cameras send under the same id: give every camera its own id",
    "camera": "gate",
    "level": "warning",
    "advice": True,
}


def test_advice_is_told_once_and_only_what_is_new(tmp_path: Path) -> None:
    log = tmp_path / "decode-0.log"
    log.write_text(json.dumps(WARNING) + "\n")
    advice = CameraAdvice(tmp_path)
    assert advice.news() == []
    with log.open("a") as file:
        file.write("no JSON\n" + json.dumps({**WARNING, "advice": False}) + "\n[]\n")
        file.write(json.dumps(WARNING) + "\n" + json.dumps(WARNING)[:20])
        file.flush()
        assert advice.news() == [f"camera gate: {WARNING['event']}"]
        file.write(json.dumps(WARNING)[20:] + "\n")
        file.flush()
        assert len(advice.news()) == 1
    assert advice.news() == []


def test_a_log_that_begins_later_is_read_whole_and_its_text_does_not_rule_the_terminal(
    tmp_path: Path,
) -> None:
    advice = CameraAdvice(tmp_path)
    (tmp_path / "decode-1.log").write_text(json.dumps({**WARNING, "camera": "a\x1b[2J"}) + "\n")
    (sentence,) = advice.news()
    assert "\x1b" not in sentence


def test_advice_about_no_camera_begins_with_what_it_says(tmp_path: Path) -> None:
    advice = CameraAdvice(tmp_path)
    entry = {"event": "camera.segments.v1 has a partition 4 and decode.state.v1 has none", "advice": True}
    (tmp_path / "decode-0.log").write_text(json.dumps(entry) + "\n")
    assert advice.news() == [entry["event"]]
