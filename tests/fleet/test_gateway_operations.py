"""Operations over the API of a real gateway: dead letters and their bytes, lag, the audit of searches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

import lookout
from lookout.cli.app import app
from lookout.cli.report import report
from lookout.local import KafkaServer, addresses
from lookout.local.addresses import FleetAddress
from lookout.runtime.worker.fleet_check import client_id
from lookout.wire import PIPELINE, SEGMENTS, VERDICTS, Stage, headers, to_json
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess, gateway
from tests.fleet.gateway_records import BEGIN_MS, alert, publish, verdict
from tests.second_model import SecondModel

pytestmark = [pytest.mark.fleet, pytest.mark.long]
DEAD = f"{SEGMENTS.name}.dlq"
BYTES = b"<script>alert(1)</script>\x00\xff"


@pytest.fixture(scope="module")
def process(
    quick_java: None, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    with ExitStack() as stack:
        server = stack.enter_context(KafkaServer())
        price = {"price_per_hour": "3600", "currency": "CHF"}
        running = gateway(stack, tmp_path_factory.mktemp("gateway"), server.bootstrap, redis_url, price)
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


def test_the_command_reports_what_the_gateway_does(client: httpx.Client, process: GatewayProcess) -> None:
    begin, end = (datetime.fromtimestamp(BEGIN_MS / 1000 + hours * 3600, UTC) for hours in (-1, 1))
    bootstrap = process.settings["bootstrap"]
    answers = [verdict("gantry", window, None if 90 < window < 200 else 0.5) for window in range(300)]
    publish(bootstrap, answers)
    scope = {"camera": "ga*", "since": begin.isoformat(), "until": end.isoformat()}

    own = json.loads(to_json(report("ga*", begin, end, bootstrap=bootstrap)))

    def told() -> dict[str, Any]:
        whole: dict[str, Any] = client.get("/v1/report", params=scope).json()
        assert whole.pop("note")  # that there are no unusual spans
        return whole

    assert sum(hour["watched_s"] + hour["unwatched_s"] for hour in own["hours"]) >= 600
    eventually(lambda: told() == own)
    assert [one["camera"] for one in own["incidents"]] == ["gate"] * 3
    assert own["unwatched"][0]["reason"] == "gap"
    assert not report("yard", begin, end, bootstrap=bootstrap).incidents


def test_the_page_comes_with_the_sentences_of_the_report(
    client: httpx.Client, process: GatewayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = process.settings["bootstrap"]
    publish(bootstrap, [verdict("gate", window) for window in range(30)])
    words = ["report", "--camera", "gate", "--since", "start", "--out", str(page := tmp_path / "page.html")]
    done = CliRunner().invoke(app, [*words, "--bootstrap", bootstrap], catch_exceptions=False)
    printed = done.stdout.splitlines()
    since = datetime.now(UTC) - timedelta(days=31)
    assert printed[:-1] == [
        sentence.text for sentence in report("gate", since, bootstrap=bootstrap).sentences
    ]
    assert "“Is anyone lying on the ground?” was yes on gate (3)" in done.stdout
    assert printed[-1] == str(page)
    assert "Is anyone lying on the ground?" in page.read_text()
    # A model tells it, where one is named.
    told = [*words, "--bootstrap", bootstrap, "--prose"]
    unnamed = CliRunner().invoke(app, told)
    assert "set LOOKOUT_PROSE_URL" in str(unnamed.exception)
    with SecondModel(lambda question: (200, "Three times somebody lay there [1, 2, 3].")) as model:
        monkeypatch.setenv("LOOKOUT_PROSE_URL", f"{model.url}/v1")
        assert "LOOKOUT_PROSE_MODEL" in str(CliRunner().invoke(app, told).exception)
        monkeypatch.setenv("LOOKOUT_PROSE_MODEL", "big")
        lines = CliRunner().invoke(app, told, catch_exceptions=False).stdout.splitlines()
        cited = report("gate", since, bootstrap=bootstrap, prose=True)
    assert lines[0] == "Three times somebody lay there."
    assert lines[1].startswith("Written by big from the facts of this report")
    assert lines[-1] == str(page)
    assert list(cited.prose[0].incidents) == [incident.id for incident in cited.incidents]
    gone = CliRunner().invoke(app, told, catch_exceptions=False).stdout.splitlines()
    assert gone[:-2] == printed[:-1]
    assert gone[-2].startswith("no prose: ")
    # Without the packages of the gateway there is the page alone, and what to install for sentences.
    for name in [name for name in sys.modules if name.startswith("lookout.services.gateway.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    plain = CliRunner().invoke(app, [*words, "--bootstrap", bootstrap], catch_exceptions=False)
    (missing, written) = plain.stdout.splitlines()
    assert "pip install 'lookout-fleet[gateway]'" in missing
    assert written == str(page)


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


def test_dead_letters_of_an_erased_camera_are_not_listed(client: httpx.Client) -> None:
    assert "hall" not in letters(client)
    assert "gate" in letters(client)


def test_sign_ins_are_audited_good_and_failed(process: GatewayProcess, client: httpx.Client) -> None:
    with process.signed_in():
        pass
    with process.client() as stranger:
        assert stranger.get("/sign-in/none").status_code == 401
        unknown = {"authorization": "Bearer unknown"}
        assert stranger.get("/v1/session", headers=unknown).status_code == 401
    worked = eventually(lambda: audited(client, "sign-in"))
    assert (worked[0]["actor"], worked[0]["subject"], worked[0]["address"]) == ("local", "link", "127.0.0.1")
    eventually(lambda: len(audited(client, "sign-in.failed")) == 2)
    failed = audited(client, "sign-in.failed")
    assert {(entry.get("actor", ""), entry["subject"]) for entry in failed} == {("", "link"), ("", "token")}


def test_a_search_is_audited_once_for_all_its_pages(client: httpx.Client) -> None:
    first = client.get("/v1/incidents", params={"q": "lying", "limit": 1}).json()
    client.get("/v1/incidents", params={"q": "lying", "limit": 1, "after": first["next"]})
    client.get("/v1/incidents", params={"q": "ground"})
    client.get("/v1/incidents")
    eventually(lambda: len(audited(client, "incident.search")) == 2)
    assert {entry["subject"] for entry in audited(client, "incident.search")} == {"lying", "ground"}


def test_a_fleet_that_has_caught_up_has_no_lag(process: GatewayProcess, client: httpx.Client) -> None:
    """Marks of transactions and what was aborted is nothing to wait for; a record that waits is."""
    kafka = process.settings["bootstrap"]
    topic, group = PIPELINE[Stage.DECODE].source.name, PIPELINE[Stage.DECODE].group
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "lag"})
    producer.init_transactions(60.0)
    for keep in (True, True, False):
        producer.begin_transaction()
        producer.produce(topic, b"segment", key=b"gate", partition=0)
        producer.flush(60.0)
        producer.commit_transaction(60.0) if keep else producer.abort_transaction(60.0)
    with closing(Consumer({"bootstrap.servers": kafka, "group.id": group})) as consumer:
        # Each transaction is a record and a mark; the newest record that counts is the second one's.
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60.0)[1] == 6
        assert lag(client, group) == {0: 0, 1: 0}
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        assert lag(client, group) == {0: 4, 1: 0}


def lag(client: httpx.Client, group: str) -> dict[int, int]:
    """The lag of a group by partition."""
    rows = client.get("/v1/fleet").json()["lag"]
    return {row.get("partition", 0): row.get("lag", 0) for row in rows if row["group"] == group}


def test_the_fleet_shows_its_groups_its_members_and_what_doctor_finds(
    process: GatewayProcess, client: httpx.Client
) -> None:
    kafka, group = process.settings["bootstrap"], PIPELINE[Stage.ALERTS].group
    member = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": group,
            "group.instance.id": "alerts-0",
            "client.id": client_id("alerts", {"fps": "2"}, "one", "9.8.7"),
        }
    )
    with closing(member):
        member.subscribe([VERDICTS.name])
        eventually(lambda: member.poll(0.2) is None and bool(member.assignment()))
        shown = client.get("/v1/fleet").json()
    groups = {row["group"] for row in shown["lag"]}
    assert {"decode", "prune-encode", "prefill", "alerts", "recordings"} <= groups
    assert shown["version"] == lookout.__version__
    (service,) = shown["services"]
    assert (service["group"], service["instance"], service["version"]) == (group, "alerts-0", "9.8.7")
    found = {row["about"]: row for row in shown["findings"]}
    assert found["Kafka"]["state"] == found["Redis"]["state"] == "ok"
    assert found["topics"]["state"] == "ok"
    assert found["stage alerts"]["found"] == "1 worker(s)"
    assert (found["stage decode"]["state"], bool(found["stage decode"]["advice"])) == ("bad", True)


def cost_rows(client: httpx.Client, when: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of the report of costs."""
    return list(client.get("/v1/costs", params=when).json().get("rows", []))


def test_costs_and_usage_add_up_the_time_of_devices(process: GatewayProcess, client: httpx.Client) -> None:
    kafka = process.settings["bootstrap"]
    for camera, watch in (("gate", "lying"), ("gate", "running"), ("hall-2", "lying")):
        publish(kafka, [verdict(camera, number, tenant="north", watch=watch) for number in range(8)])
    publish(kafka, [verdict("yard", number, tenant="south") for number in range(4)])
    when = {"since": datetime.fromtimestamp(BEGIN_MS / 1000, UTC).isoformat()}

    def tenants_rows() -> dict[tuple[str, str], dict[str, Any]]:
        every = cost_rows(client, when)
        return {(row["camera"], row["watch"]): row for row in every if row["camera"] != "gantry"}

    eventually(lambda: sum(row["verdicts"] for row in tenants_rows().values()) == 28)
    rows = tenants_rows()
    assert {key: row["device_s"] for key, row in rows.items()} == {
        ("gate", "lying"): 2.0,
        ("gate", "running"): 2.0,
        ("hall-2", "lying"): 2.0,
        ("yard", "lying"): 1.0,
    }
    # 3600 an hour is 1 a second.
    assert all(row["money"] == row["device_s"] for row in rows.values())
    assert rows["gate", "lying"]["flops"] == 8 * (1000 / 2 + 10)
    assert sum(row["share"] for row in cost_rows(client, when)) == pytest.approx(1.0)
    report = client.get("/v1/usage", params=when).json()
    usage = {row["tenant"]: row for row in report["rows"]}
    north, south = usage["north"], usage["south"]
    assert (north["cameras"], north["verdicts"], north["answers"], north["device_s"]) == (2, 24, 24, 6.0)
    assert (north["incidents"], north["money"], report["currency"]) == (3, 6.0, "CHF")
    assert (south["cameras"], south["device_s"], south.get("incidents", 0)) == (1, 1.0, 0)
    made = client.post("/v1/tokens", json={"name": "usage", "role": "viewer", "tenants": ["south"]})
    with process.client(headers={"authorization": f"Bearer {made.json()['secret']}"}) as program:
        assert [row["tenant"] for row in program.get("/v1/usage", params=when).json()["rows"]] == ["south"]
    assert_sheet(process, made.json()["secret"])


def assert_sheet(process: GatewayProcess, token: str) -> None:
    """`lookout cost` prints what the token may see, and advises where there is none."""
    month = f"{datetime.fromtimestamp(BEGIN_MS / 1000, UTC):%Y-%m}"
    words = ["cost", "--month", month, "--gateway", process.url, "--price", "3600", "--format", "json"]
    done = CliRunner().invoke(app, words, env={"LOOKOUT_GATEWAY_TOKEN": token}, catch_exceptions=False)
    sheet = json.loads(done.stdout)
    assert [(row["camera"], row["verdicts"], row["cost"]) for row in sheet["rows"]] == [("yard", 4, 1.0)]
    assert (sheet["month"], sheet["cost"]) == (month, 1.0)
    refused = CliRunner().invoke(app, words, env={"LOOKOUT_GATEWAY_TOKEN": "none"})
    assert refused.exit_code == 1
    assert "LOOKOUT_GATEWAY_TOKEN" in str(refused.exception)


def test_the_sheet_of_costs_signs_in_to_the_fleet_that_runs_here(
    process: GatewayProcess, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = FleetAddress(
        bootstrap=process.settings["bootstrap"],
        redis_url="",
        folder="",
        pid=0,
        metrics={},
        grpc={},
        gateway=process.url,
        sign_in_file=str(process.sign_in_file),
    )
    monkeypatch.setattr(addresses, "running_fleets", lambda: [here])
    done = CliRunner().invoke(app, ["cost"], catch_exceptions=False)
    assert done.stdout.startswith("# Cost of ")
