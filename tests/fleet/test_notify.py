"""Notifications: from Kafka to a real HTTP target, over the gateway's API, and through kills."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.connect import make_producer
from lookout.local import FleetAddress, KafkaServer, create_topics
from lookout.runtime.net.links import signed_link
from lookout.runtime.net.push_keys import new_push_key
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.wire import ALERTS, to_json
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.notify_case import (
    KEY,
    OLD_KEY,
    HookServer,
    NotifyProcess,
    act,
    alert,
    configure,
    notifying,
    publish,
    webhook,
)
from tests.fleet.notify_faults import attacked
from tests.fleet.push_service import PushService

pytestmark = pytest.mark.fleet

LINK_KEY = b"a key of links, of the tests"


@pytest.fixture(scope="module")
def notify(
    broker: KafkaServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NotifyProcess]:
    """A notify process of the module."""
    create_topics(broker.bootstrap, 2)
    folder = tmp_path_factory.mktemp("notify")
    (folder / "link-key").write_bytes(LINK_KEY)
    (folder / "secrets").mkdir()
    (folder / "secrets" / "push-key").write_bytes(new_push_key())
    settings = {
        "public_url": "http://lookout.test:8080",
        "link_key_file": str(folder / "link-key"),
        "push_key_file": str(folder / "secrets" / "push-key"),
    }
    with notifying(NotifyProcess(folder, broker.bootstrap, redis_url, settings)) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(
    broker: KafkaServer, redis_url: str, notify: NotifyProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """An administrator of a gateway that knows this notify."""
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "link-key").write_bytes(LINK_KEY)
    settings = {
        "notify": f"127.0.0.1:{notify.service.grpc_port}",
        "link_key_file": str(folder / "link-key"),
        "push_key_file": str(notify.secrets / "push-key"),
    }
    process = GatewayProcess(folder, broker.bootstrap, redis_url, settings).start()
    with process.signed_in() as client:
        yield client
    process.close()


def test_a_webhook_is_told_in_order_signed_by_both_keys(broker: KafkaServer, notify: NotifyProcess) -> None:
    (notify.secrets / "old").write_text(OLD_KEY)
    with HookServer() as target, HookServer(key=OLD_KEY) as before:
        both = [
            webhook(name, server.url, cameras=["one"]) for name, server in (("new", target), ("old", before))
        ]
        for notification in both:
            notification.webhook.secrets.append("old")
        configure(broker.bootstrap, *both)
        time.sleep(1.0)  # the table follows
        kinds = (Alert.KIND_OPENED, Alert.KIND_UPDATED, Alert.KIND_CLOSED)
        events = [alert(1, kind, n, "one") for n, kind in enumerate(kinds)]
        publish(make_producer(broker.bootstrap), *events, alert(2, Alert.KIND_OPENED, camera="other"))
        for server in (target, before):
            eventually(lambda server=server: len(server.taken()) == 3, 60)  # type: ignore[misc]
            assert server.faults == []
            assert [hit.happened["id"] for hit in server.taken()] == [event.id for event in events]
        event = target.taken()[0].event
        assert (event["specversion"], event["type"]) == ("1.0", "lookout.notification.v1")
        assert event["data"]["text"].startswith("one: Is anyone lying on the ground? Yes, p(yes) 0.90")
        assert event["data"]["console_url"].endswith("/#/incidents/incident-1")
        assert KEY not in str(event)


def test_the_api_writes_tests_and_removes(gateway: httpx.Client, notify: NotifyProcess) -> None:
    with HookServer() as target:
        body = {"webhook": {"url": target.url, "secrets": ["hook"]}, "cameras": ["nowhere"]}
        assert gateway.put("/v1/notifications/by-api", json=body).status_code == 200
        listed = gateway.get("/v1/notifications").json()["notifications"]
        assert "by-api" in [row["notification"]["id"] for row in listed]
        answer = gateway.post("/v1/notifications/by-api/test")
        assert answer.json() == {"delivered": True}, answer.text
        assert target.taken()[0].event["data"]["test"] is True
        assert gateway.delete("/v1/notifications/by-api").status_code == 204
        assert gateway.get("/v1/notifications/by-api").status_code == 404


def test_the_command_adds_tests_and_removes_with_its_secret(
    broker: KafkaServer, redis_url: str, notify: NotifyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = notify.service.grpc_port
    assert port is not None
    folder = str(notify.secrets.parent)
    fleet = FleetAddress(broker.bootstrap, redis_url, folder, os.getpid(), {}, {"notify-0": port})
    monkeypatch.setattr("lookout.cli.notify.running_fleets", lambda: [fleet])
    monkeypatch.setattr("lookout.cli.notify.NOTIFY_SECRETS", notify.secrets.name)

    def lookout(*words: str) -> str:
        done = CliRunner().invoke(app, ["notify", *words, "-b", broker.bootstrap])
        return f"{done.exit_code} {' '.join(done.output.split())}{done.exception or ''}"

    with HookServer(key="") as target:
        before = set(notify.secrets.iterdir())
        added = lookout("add", "by-command", "--webhook", target.url, "-c", "nowhere")
        target.key = re.findall(r"whsec_\S+", added)[0]
        assert added.startswith("0 ✓ by-command is told of incidents")
        (file,) = set(notify.secrets.iterdir()) - before
        assert (file.read_text(), file.stat().st_mode & 0o077) == (target.key, 0)
        assert "whsec_" not in lookout("add", "by-command", "--webhook", target.url, "-c", "elsewhere")
        assert "elsewhere" in lookout("list")
        eventually(lambda: lookout("test", "by-command") == "0 ✓ delivered", 60)
        assert (target.taken()[0].event["data"]["test"], target.faults) == (True, [])
        assert lookout("snooze", "by-command", "8h").startswith("0 ✓ by-command is snoozed until 2")
        assert "snoozed" in lookout("list")
        assert "TIME 'yesterday'" in lookout("snooze", "by-command", "yesterday")
        assert lookout("snooze", "by-command", "off") == "0 ✓ by-command is on"
        assert lookout("rm", "by-command") == "0 ✓ removed by-command"
        assert not file.exists()
    assert "by-command" not in lookout("list")
    before = set(notify.secrets.iterdir())
    url = "mqtt://home:hunter2@127.0.0.1:1"
    assert lookout("add", "home", "--mqtt", url, "--snooze-token", "a-token", "-c", "nowhere").startswith(
        "0 "
    )
    files = sorted(set(notify.secrets.iterdir()) - before)
    assert [path.read_text() for path in files] == ["hunter2", "a-token"]
    assert lookout("rm", "home") == "0 ✓ removed home"
    # Nothing listens there: the service keeps the password, with which it takes entities back.
    assert [path.read_text() for path in set(notify.secrets.iterdir()) - before] == ["hunter2"]
    for words, why in (
        (("rm", "by-command"), "no notification by-command"),
        (("snooze", "by-command", "8h"), "no notification by-command"),
        (("add", "x"), "give one of --webhook, --apprise and --mqtt"),
        (("add", "x", "--webhook", "http://a.example", "--mqtt", "mqtt://b.example"), "give one of"),
        (("add", "x", "--webhook", "http://user:hunter2@a.example"), "remove the user name and password"),
        (("add", "x", "--webhook", "http://a.example", "--event", "opnd"), "--event opnd: give one of"),
        (("add", "x", "--webhook", "http://a.example", "--snooze-token", "t"), "goes with --mqtt"),
        (("add", "x", "--mqtt", "http://b.example"), "begins with mqtt:// or mqtts://"),
    ):
        refused = lookout(*words)
        assert refused.startswith("1 "), refused
        assert why in refused
        assert "hunter2" not in refused


def test_a_key_that_changes_in_its_file_signs_what_comes_next(
    broker: KafkaServer, notify: NotifyProcess
) -> None:
    key = notify.secrets / "changing"
    key.write_text(KEY)
    with HookServer() as target:
        notification = webhook("changing", target.url, cameras=["changing"])
        notification.webhook.secrets[:] = ["changing"]
        configure(broker.bootstrap, notification)
        time.sleep(1.0)  # the table follows
        producer = make_producer(broker.bootstrap)
        publish(producer, alert(41, Alert.KIND_OPENED, camera="changing"))
        eventually(lambda: len(target.taken()) == 1, 60)
        target.key = OLD_KEY
        key.write_text(OLD_KEY)
        publish(producer, alert(42, Alert.KIND_OPENED, camera="changing"))
        eventually(lambda: len(target.taken()) == 2, 60)
        assert target.faults == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "channel"),
        ({"webhook": {"url": "https://example.org", "secrets": ["../key"]}}, "name of a secret file"),
    ],
)
def test_the_api_says_what_is_wrong(gateway: httpx.Client, body: dict[str, object], why: str) -> None:
    answer = gateway.put("/v1/notifications/wrong", json=body)
    assert answer.status_code == 400
    assert why in answer.json()["detail"]


def test_operators_do_not_see_notifications(gateway: httpx.Client) -> None:
    token = gateway.post("/v1/tokens", json={"name": "guard", "role": "operator"}).json()["secret"]
    with httpx.Client(base_url=gateway.base_url, headers={"authorization": f"Bearer {token}"}) as guard:
        assert guard.get("/v1/notifications").status_code == 403


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://10.9.8.7/hook", "LOOKOUT_NOTIFY_HOSTS"),
        ("http://[::1]:1/hook", "LOOKOUT_NOTIFY_HOSTS"),
    ],
)
def test_a_host_that_is_not_allowed_is_not_reached(gateway: httpx.Client, url: str, why: str) -> None:
    body = {"webhook": {"url": url, "secrets": ["hook"]}, "cameras": ["nowhere"]}
    assert gateway.put("/v1/notifications/far", json=body).status_code == 200
    answer = gateway.post("/v1/notifications/far/test").json()
    assert not answer["delivered"]
    assert why in answer["detail"]
    assert gateway.delete("/v1/notifications/far").status_code == 204


def test_a_link_shows_its_own_path_until_it_ends(gateway: httpx.Client, broker: KafkaServer) -> None:
    publish(make_producer(broker.bootstrap), alert(7, Alert.KIND_OPENED))
    eventually(lambda: gateway.get("/v1/incidents/incident-7").status_code == 200, 60)
    path = "/v1/shared/incidents/incident-7/picture.jpg"
    link = signed_link(LINK_KEY, "http://host", path, 60)
    query = urlsplit(link).query
    with httpx.Client(base_url=gateway.base_url) as anybody:
        # There is no footage: what answers is the picture's route, which found the incident.
        shown = anybody.get(f"{path}?{query}")
        assert shown.status_code == 404
        assert "Kafka no longer has a picture of it" in shown.json()["detail"]
        assert anybody.get(f"/v1/shared/incidents/incident-7/clip.mp4?{query}").status_code == 401
        assert anybody.get(f"{path}?{query[:-3]}abc").status_code == 401
        ended = urlsplit(signed_link(LINK_KEY, "http://host", path, -1)).query
        assert anybody.get(f"{path}?{ended}").status_code == 401
        forged = urlsplit(signed_link(b"another key, as long as it", "http://host", path, 60)).query
        assert anybody.get(f"{path}?{forged}").status_code == 401


def test_what_people_do_is_told_and_ends_an_escalation(broker: KafkaServer, notify: NotifyProcess) -> None:
    with HookServer() as target, HookServer() as late:
        configure(
            broker.bootstrap,
            webhook("acts", target.url, cameras=["ward"]),
            webhook("late", late.url, cameras=["ward"], unclaimed_s=3),
        )
        time.sleep(1.0)
        opened = [alert(n, Alert.KIND_OPENED, camera="ward") for n in (21, 22)]
        claim = act(21, IncidentAction.KIND_CLAIM, "ward")
        publish(make_producer(broker.bootstrap), *opened, claim)
        eventually(lambda: len(target.taken()) == 3, 60)
        assert claim.id in [hit.happened["id"] for hit in target.taken()]
        eventually(lambda: len(late.taken()) == 1, 60)
        assert late.taken()[0].happened["incident"] == "incident-22"


def test_a_record_that_is_not_an_alert_is_a_dead_letter(
    gateway: httpx.Client, broker: KafkaServer, notify: NotifyProcess
) -> None:
    producer = make_producer(broker.bootstrap)
    producer.produce(ALERTS.name, b"{", "gate")
    producer.flush()

    def letters() -> list[dict[str, object]]:
        page = gateway.get("/v1/dead-letters").json()
        return [letter for letter in page.get("letters", []) if letter["stage"] == "notify"]

    assert eventually(letters, 60)[0]["reason"] == "bad-event"
    counted = re.compile(r'lookout_dead_letters_total\{reason="bad-event",stage="notify"\} [1-9]')
    metrics = f"http://127.0.0.1:{notify.service.metrics_port}/metrics"
    eventually(lambda: counted.search(httpx.get(metrics).text), 60)


def test_a_browser_is_told_until_it_is_gone(
    gateway: httpx.Client, broker: KafkaServer, notify: NotifyProcess
) -> None:
    with PushService() as browser:
        assert len(gateway.get("/v1/push").json()["key"]) == 87
        push = json.loads(to_json(browser.subscription))
        answer = gateway.put("/v1/push", json={"push": push, "cameras": ["lobby"]}).json()
        identity = answer["notification"]["id"]
        assert answer["notification"]["push"]["person"] == "local"
        assert gateway.post(f"/v1/push/{identity}/test").json() == {"delivered": True}
        assert browser.got[0][1]["text"].startswith("This is a test of the notification")
        publish(make_producer(broker.bootstrap), alert(31, Alert.KIND_OPENED, camera="lobby"))
        eventually(lambda: len(browser.got) == 2, 60)
        assert browser.got[1][1]["text"].startswith("lobby: Is anyone lying on the ground? Yes")
        (view,) = [
            row
            for row in gateway.get("/v1/notifications").json()["notifications"]
            if row["notification"]["id"] == identity
        ]
        assert view["delivery"]["delivered"]
        assert not view["delivery"].get("error")
        browser.status = 410
        publish(make_producer(broker.bootstrap), alert(32, Alert.KIND_OPENED, camera="lobby"))
        eventually(lambda: "notifications" not in gateway.get("/v1/push").json(), 60)
        assert gateway.delete(f"/v1/push/{identity}").status_code == 404


def test_a_person_has_only_browsers_of_their_own_and_cameras_they_may_see(gateway: httpx.Client) -> None:
    body = {"name": "guard", "role": "viewer", "cameras": ["ward*"], "tenants": ["acme"]}
    token = gateway.post("/v1/tokens", json=body).json()["secret"]
    guard = httpx.Client(base_url=gateway.base_url, headers={"authorization": f"Bearer {token}"})
    with PushService() as browser, guard:
        push = json.loads(to_json(browser.subscription))
        theirs = guard.put("/v1/push", json={"push": {**push, "person": "local"}}).json()["notification"]
        assert (theirs["push"]["person"], theirs["cameras"], theirs["tenant"]) == ("guard", ["ward*"], "acme")
        for more in ({"cameras": ["gate"]}, {"tenant": "other"}):
            assert guard.put("/v1/push", json={"push": push, **more}).status_code == 403
        assert "notifications" not in gateway.get("/v1/push").json()
        assert gateway.delete(f"/v1/push/{theirs['id']}").status_code == 404
        assert guard.get("/v1/notifications").status_code == 403
        assert guard.delete(f"/v1/push/{theirs['id']}").status_code == 204


@pytest.mark.long
def test_killed_while_a_target_fails_half_of_the_time(tmp_path: Path) -> None:
    counts = attacked(tmp_path, kills=6)
    assert counts["delivered"] == counts["sent"] > 0
    assert counts["doubled_ids"] == counts["out_of_order"] == 0
