"""The history of a gateway: what Kafka says is what the API answers, also after kills and deletions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lookout.local import KafkaServer
from lookout.v1.alerts_pb2 import Alert
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_records import alert, publish, verdict, watch

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def client(broker: KafkaServer, process: GatewayProcess) -> Iterator[httpx.Client]:
    publish(
        broker.bootstrap,
        [
            watch(),
            *(alert("gate", number) for number in range(5)),
            alert("gate", 4, Alert.KIND_CLOSED),
            *(verdict("gate", window) for window in range(40)),
            *(verdict("yard", window, None if window % 2 else 0.5) for window in range(10)),
        ],
    )
    with process.signed_in() as signed_in:
        eventually(
            lambda: (
                len(signed_in.get("/v1/cameras").json().get("cameras", [])) == 2
                and len(signed_in.get("/v1/incidents").json().get("incidents", [])) == 5
            )
        )
        yield signed_in


def test_incidents_are_listed_newest_first_in_pages(client: httpx.Client) -> None:
    whole = client.get("/v1/incidents").json()["incidents"]
    assert [incident["start"] for incident in whole] == sorted(
        (incident["start"] for incident in whole), reverse=True
    )
    first = client.get("/v1/incidents", params={"limit": 2}).json()
    second = client.get("/v1/incidents", params={"limit": 3, "after": first["next"]}).json()
    assert first["incidents"] + second["incidents"] == whole
    assert "next" not in second


@pytest.mark.parametrize(
    ("params", "count"),
    [
        ({"camera": "ga*"}, 5),
        ({"camera": "yard"}, 0),
        ({"closed": "true"}, 1),
        ({"q": "lyi GROUND"}, 5),
        ({"q": "flying"}, 0),
        ({"watch": "other"}, 0),
        ({"state": "new"}, 5),
        ({"state": ["claimed", "resolved"]}, 0),
    ],
)
def test_incidents_are_filtered(client: httpx.Client, params: dict[str, Any], count: int) -> None:
    assert len(client.get("/v1/incidents", params=params).json().get("incidents", [])) == count


def test_sums_of_verdicts_equal_their_windows(client: httpx.Client) -> None:
    since = client.get("/v1/incidents").json()["incidents"][-1]["start"]  # the first window's begin
    for size in (2, 10, 60, 3600):
        page = client.get("/v1/timeline", params={"camera": "gate", "since": since, "bucket": size}).json()
        buckets = page["series"][0]["buckets"]
        assert sum(bucket["verdicts"] for bucket in buckets) == 40
        assert sum(bucket["watched_s"] for bucket in buckets) == pytest.approx(88.0)
        assert {bucket["p_max"] for bucket in buckets if bucket["answers"]} == {0.25}


def test_coverage_tells_watched_time_from_gaps(client: httpx.Client) -> None:
    since = client.get("/v1/incidents").json()["incidents"][-1]["start"]
    rows = client.get("/v1/coverage", params={"since": since}).json()["rows"]
    yard = next(row for row in rows if row["camera"] == "yard")["coverage"]
    assert (yard["answered_s"], yard["gap_s"]) == (18.0, 10.0)


def test_single_verdicts_come_from_kafka(client: httpx.Client) -> None:
    since = client.get("/v1/incidents").json()["incidents"][-1]["start"]
    until = client.get("/v1/incidents").json()["incidents"][0]["start"]
    page = client.get("/v1/verdicts", params={"camera": "yard", "since": since, "until": until}).json()
    assert [entry["window"] for entry in page["verdicts"]] == list(range(10))
    assert page["complete"]


def test_a_life_of_an_incident(client: httpx.Client) -> None:
    identity = client.get("/v1/incidents").json()["incidents"][0]["id"]
    where = f"/v1/incidents/{identity}/actions"
    claimed = client.post(where, json={"kind": "claim", "note": "on my way"}).json()
    assert (claimed["state"], claimed["assignee"], claimed["notes"]) == ("claimed", "local", 1)
    again = client.post(where, json={"kind": "claim"})
    assert again.status_code == 409
    assert "claimed by local" in again.json()["detail"]
    assert client.post(where, json={"kind": "false-positive"}).json()["right"] is False
    assert client.post(where, json={"kind": "claim"}).status_code == 409
    reopened = client.post(where, json={"kind": "reopen"}).json()
    assert reopened["state"] == "reopened"
    assert "right" not in reopened
    for kind, state in (("acknowledge", "acknowledged"), ("claim", "claimed"), ("release", "new")):
        handled = client.post(where, json={"kind": kind}).json()
        assert (handled["state"], handled.get("assignee", "")) == (state, "local" * (kind == "claim"))
    assert client.post(where, json={"kind": "release"}).status_code == 409
    kinds = [action["kind"] for action in client.get(f"/v1/incidents/{identity}").json()["actions"]]
    assert kinds == ["claim", "false-positive", "reopen", "acknowledge", "claim", "release"]
    listed = client.get("/v1/incidents", params={"acts": "true"}).json()["incidents"]
    assert [action["kind"] for action in listed[0]["actions"]] == kinds
    assert not any(one.get("actions") for one in client.get("/v1/incidents").json()["incidents"])
    assert client.post(where, json={"kind": "dance"}).status_code == 400
    assert client.post("/v1/incidents/none/actions", json={"kind": "claim"}).status_code == 404


def test_a_repeated_request_changes_once(client: httpx.Client) -> None:
    identity = client.get("/v1/incidents").json()["incidents"][1]["id"]
    where, header = f"/v1/incidents/{identity}/actions", {"idempotency-key": "k-1"}
    body = {"kind": "note", "note": "seen"}
    first = client.post(where, json=body, headers=header).json()
    second = client.post(where, json=body, headers=header).json()
    assert first == second
    assert len(first["actions"]) == 1


def followed(process: GatewayProcess, client: httpx.Client, last: str, count: int) -> list[dict[str, Any]]:
    """Events after one; ends when there are enough."""
    got: list[dict[str, Any]] = []
    headers = {"last-event-id": last} if last else {}
    with client.stream("GET", "/v1/events", headers=headers) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                got.append(json.loads(line.removeprefix("data: ")))
            if len(got) >= count:
                return got
    return got


def test_a_follower_that_comes_back_misses_nothing(
    broker: KafkaServer, process: GatewayProcess, client: httpx.Client
) -> None:
    got: list[dict[str, Any]] = []
    begun = threading.Event()

    def follow() -> None:
        with client.stream("GET", "/v1/events") as stream:
            for line in stream.iter_lines():
                begun.set()
                if line.startswith("data: "):
                    got.append(json.loads(line.removeprefix("data: ")))
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(30)
    publish(broker.bootstrap, [alert("event-cam", 0)])
    thread.join(60)
    assert got[0]["incident"]["camera"] == "event-cam"
    publish(broker.bootstrap, [alert("event-cam", number) for number in range(1, 4)])
    process.service.stop(0.0)  # killed: what it did not tell yet is not lost
    publish(broker.bootstrap, [alert("event-cam", number) for number in range(4, 6)])
    process.start()
    with process.signed_in() as again:
        rest = followed(process, again, got[0]["id"], 5)
        assert [event["incident"]["id"] for event in rest] == [
            alert("event-cam", number).incident for number in range(1, 6)
        ]
        numbers = [int(event["id"].split("-")[1]) for event in [*got, *rest]]
        assert numbers == list(range(numbers[0], numbers[0] + 6))
