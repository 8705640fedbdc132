"""A report over the gateway: what its history and recall say of a time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from lookout.services.gateway.principal import Principal
from lookout.v1.access_pb2 import Role
from tests.fleet.gateway_records import BEGIN_MS
from tests.unit.services.test_gateway_history import ingest
from tests.unit.services.test_gateway_serving import cookie, served

pytestmark = pytest.mark.slow


def asked(port: int, path: str, headers: dict[str, str], **query: str) -> Any:
    """What the API answers."""
    answer = httpx.get(f"http://127.0.0.1:{port}/v1/{path}", params=query, headers=headers, timeout=60.0)
    return answer.json()


def test_a_report_has_incidents_hours_and_what_was_not_watched(tmp_path: Path) -> None:
    with served(tmp_path) as (port, parts):
        ingest(parts.database, ())
        begin, end = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (BEGIN_MS, BEGIN_MS + 3_600_000))
        ada, whole = cookie(parts), {"since": begin.isoformat(), "until": end.isoformat()}
        report = asked(port, "report", ada, **whole)
        assert [incident["camera"] for incident in report["incidents"]] == ["gate"] * 4
        assert len(report["hours"]) == 1
        assert report["hours"][0]["incidents"] == 4
        assert "memory" in report["note"]
        assert report["sentences"][0]["incidents"] == [incident["id"] for incident in report["incidents"]]
        assert asked(port, "session", ada)["searches"] is False
        (gate,) = [row for row in asked(port, "coverage", ada, **whole)["rows"] if row["camera"] == "gate"]
        stretches = [one for one in report["unwatched"] if one["camera"] == "gate"]
        assert {one["reason"] for one in stretches} == {
            "gap",
            "unseen",
        }  # nothing came in the rest of the hour
        lost_s = gate["coverage"]["gap_s"] + gate["unseen_s"]
        assert sum(one["seconds"] for one in stretches) == pytest.approx(lost_s)
        whole_s = sum(one["seconds"] for one in report["unwatched"])
        assert report["hours"][0]["unwatched_s"] == pytest.approx(whole_s)
        north = parts.sessions.begin(Principal("bea", Role.ROLE_VIEWER, tenants=("north",)))
        theirs = asked(port, "report", {"cookie": f"lookout-session={north}"}, **whole)
        assert "incidents" not in theirs
        assert {one["tenant"] for one in theirs["unwatched"]} == {"north"}
        assert theirs["hours"][0]["watched_s"] > 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"since": "2026-05-02", "until": "2026-05-01"}, "before until"),
        ({"since": "2020-01-01", "until": "2026-05-01"}, "at most 31 days"),
        ({"since": "yesterday"}, "since"),
    ],
)
def test_a_time_that_cannot_be_is_refused(tmp_path: Path, query: dict[str, str], words: str) -> None:
    with served(tmp_path) as (port, parts):
        assert words in asked(port, "report", cookie(parts), **query)["detail"]


def test_a_recall_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with served(tmp_path, recall="127.0.0.1:1") as (port, parts):
        ingest(parts.database, ())
        report = asked(port, "report", cookie(parts))
        assert "recall does not answer (UNAVAILABLE)" in report["note"]
        assert asked(port, "session", cookie(parts))["searches"] is True
        assert report["incidents"]
