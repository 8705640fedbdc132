"""Operations over the API of a real gateway: dead letters and their bytes, lag, the audit of searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from lookout.local import KafkaServer
from lookout.wire import SEGMENTS, headers
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_records import alert, publish

pytestmark = pytest.mark.fleet
DEAD = f"{SEGMENTS.name}.dlq"
BYTES = b"<script>alert(1)</script>\x00\xff"


@pytest.fixture(scope="module")
def process(
    quick_java: None, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    with ExitStack() as stack:
        server = stack.enter_context(KafkaServer())
        running = gateway(stack, tmp_path_factory.mktemp("gateway"), server.bootstrap, redis_url)
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for camera, tenant in (("gate", "north"), ("yard", "south"), ("hall", "north")):
            pairs = [
                (headers.STAGE, b"decode"),
                (headers.REASON, b"undecodable"),
                (headers.DETAIL, b"no keyframe"),
                (headers.TENANT, tenant.encode()),
            ]
            producer.produce(DEAD, BYTES, key=camera, headers=pairs)
        assert producer.flush(60.0) == 0
        publish(server.bootstrap, [alert("gate", number, tenant="north") for number in range(3)])
        yield running


@pytest.fixture(scope="module")
def client(process: GatewayProcess) -> Iterator[httpx.Client]:
    with process.signed_in() as signed_in:
        eventually(lambda: len(letters(signed_in)) == 3)
        eventually(lambda: len(signed_in.get("/v1/incidents").json().get("incidents", [])) == 3)
        yield signed_in


def letters(client: httpx.Client) -> dict[str, dict[str, Any]]:
    """The dead letters that a caller sees, by camera."""
    return {row["key"]: row for row in client.get("/v1/dead-letters").json().get("letters", [])}


def path(letter: dict[str, Any]) -> str:
    return f"/v1/dead-letters/{letter['topic']}/{letter.get('partition', 0)}/{letter.get('offset', 0)}"


def audited(client: httpx.Client, action: str) -> list[dict[str, Any]]:
    """The entries of an action."""
    return list(client.get("/v1/audit", params={"action": action}).json().get("entries", []))


def test_the_bytes_of_a_dead_letter_are_a_download(client: httpx.Client) -> None:
    letter = letters(client)["gate"]
    assert (letter["reason"], letter["detail"]) == ("undecodable", "no keyframe")
    answer = client.get(path(letter))
    assert answer.status_code == 200
    assert answer.content == BYTES
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"
    (entry,) = eventually(lambda: audited(client, "dead-letter.view"))
    assert (entry["camera"], entry["tenant"]) == ("gate", "north")


@pytest.mark.parametrize(
    ("place", "status"),
    [
        (f"{DEAD}/0/999999", 404),
        (f"{DEAD}/0/{2**63}", 422),
        (f"{DEAD}/-1/0", 422),
        (f"{SEGMENTS.name}/0/0", 404),
        ("access.v1/0/0", 404),
    ],
)
def test_what_is_no_dead_letter_is_not_given(client: httpx.Client, place: str, status: int) -> None:
    assert client.get(f"/v1/dead-letters/{place}").status_code == status


def test_another_tenant_gets_neither_the_letter_nor_its_bytes(
    process: GatewayProcess, client: httpx.Client
) -> None:
    made = client.post("/v1/tokens", json={"name": "south", "role": "administrator", "tenants": ["south"]})
    with process.client(headers={"authorization": f"Bearer {made.json()['secret']}"}) as program:
        assert set(letters(program)) == {"yard"}
        assert program.get(path(letters(program)["yard"])).content == BYTES
        assert program.get(path(letters(client)["gate"])).status_code == 404


def test_an_erasure_of_the_camera_hides_its_bytes(client: httpx.Client) -> None:
    letter = letters(client)["hall"]
    assert client.get(path(letter)).status_code == 200
    erasure = {"camera": "hall", "until": datetime.now(UTC).isoformat()}
    answer = client.post("/v1/erasures", json=erasure)
    assert answer.status_code == 202, answer.text
    assert client.get(path(letter)).status_code == 404


def test_a_search_is_audited_once_for_all_its_pages(client: httpx.Client) -> None:
    first = client.get("/v1/incidents", params={"q": "lying", "limit": 1}).json()
    client.get("/v1/incidents", params={"q": "lying", "limit": 1, "after": first["next"]})
    client.get("/v1/incidents", params={"q": "ground"})
    client.get("/v1/incidents")
    eventually(lambda: len(audited(client, "incident.search")) == 2)
    assert {entry["subject"] for entry in audited(client, "incident.search")} == {"lying", "ground"}


def test_every_group_of_the_fleet_has_its_lag(client: httpx.Client) -> None:
    lag = client.get("/v1/fleet").json()["lag"]
    groups = {row["group"] for row in lag}
    assert {"decode", "prune-encode", "prefill", "alerts", "recordings"} <= groups
