"""Notification resources as records: every field, what is wrong, what goes with a deleted one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.rest import ApiException

from lookout.services.controller import convert
from lookout.services.controller.cluster import FINALIZER, GROUP, NOTIFICATION, VERSION, Resources
from lookout.services.controller.convert import ResourceError
from lookout.services.controller.reconcile import Reconciler
from lookout.v1.notifications_pb2 import Notification
from lookout.wire import NOTIFICATIONS, from_json
from tests.eventually import eventually
from tests.unit.services.controller_case import CREATED, notification_resource
from tests.unit.services.test_controller_reconcile import MemoryApi, MemoryTopics, make

EVERY_RULE = {
    "watches": ["fall"],
    "cameras": ["gate*"],
    "tenant": "acme",
    "severity": "critical",
    "events": ["opened", "closed"],
    "hours": [{"start": "06:00", "end": "23:00", "weekdays": [1, 2], "timeZone": "Europe/Berlin"}],
    "quietHours": [{"start": "06:00", "end": "10:00"}],
    "unclaimedSeconds": 300,
    "disabled": True,
    "snoozedUntil": "2026-01-30T21:14:04Z",
}
RULES_ON_THE_WIRE = {
    "id": "guards",
    "watches": ["fall"],
    "cameras": ["gate*"],
    "tenant": "acme",
    "severity": "SEVERITY_CRITICAL",
    "events": ["EVENT_OPENED", "EVENT_CLOSED"],
    "hours": [{"start": "06:00", "end": "23:00", "weekdays": [1, 2], "time_zone": "Europe/Berlin"}],
    "quiet_hours": [{"start": "06:00", "end": "10:00", "time_zone": "UTC"}],
    "unclaimed_s": 300,
    "disabled": True,
    "snoozed_until": "2026-01-30T21:14:04Z",
}
CHANNELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"webhook": {"url": "https://hooks.example.org", "secrets": ["new", "old"]}},
        {"webhook": {"url": "https://hooks.example.org", "secrets": ["new", "old"]}},
    ),
    (
        {"apprise": {"urlFile": "slack", "picture": True}},
        {"apprise": {"url_file": "slack", "picture": True}},
    ),
    (
        {
            "mqtt": {
                "host": "broker",
                "port": 8884,
                "tls": True,
                "username": "lookout",
                "passwordFile": "password",
                "caFile": "authority",
                "tokenFile": "gateway-token",
                "topic": "yard/lookout",
                "discovery": "ha",
            }
        },
        {
            "mqtt": {
                "host": "broker",
                "port": 8884,
                "tls": True,
                "username": "lookout",
                "password_file": "password",
                "ca_file": "authority",
                "token_file": "gateway-token",
                "topic": "yard/lookout",
                "discovery": "ha",
            }
        },
    ),
]


@pytest.mark.parametrize(("channel", "on_the_wire"), CHANNELS)
def test_a_notification_keeps_every_field(channel: dict[str, Any], on_the_wire: dict[str, Any]) -> None:
    from google.protobuf.json_format import ParseDict

    wanted = ParseDict({**RULES_ON_THE_WIRE, **on_the_wire}, Notification())
    found = convert.notification(notification_resource(**EVERY_RULE, **channel))
    assert found == wanted
    fields = {field.name for field, _ in found.ListFields()} | {"webhook", "apprise", "mqtt", "push"}
    assert fields == {field.name for field in Notification.DESCRIPTOR.fields}, (
        "a field has no place in the spec"
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"disabled": True}, "channel: give one of webhook, apprise, mqtt and push"),
        ({"webhook": {"url": "https://a", "secrets": ["../key"]}}, "webhook.secrets"),
        ({"webhook": {"url": "https://me:secret@a", "secrets": ["key"]}}, "user name and password"),
        ({"apprise": {"urlFile": "slack"}, "hours": [{"start": "1", "end": "2"}]}, "time of day"),
        ({"apprise": {"urlFile": "slack"}, "snoozedUntil": "soon"}, "soon"),
        ({"mqtt": {"host": "broker", "topic": "a/#"}}, "mqtt.topic"),
    ],
)
def test_what_is_wrong_is_told_and_not_published(spec: dict[str, Any], words: str) -> None:
    api, topics = MemoryApi([], []), MemoryTopics()
    resource = notification_resource(**spec)
    api.resources[NOTIFICATION] = [resource]
    make(api, topics).reconcile()
    assert not topics.rows
    condition = resource["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "Invalid")
    assert words in condition["message"]


def test_a_secret_in_a_url_is_not_repeated_in_the_status() -> None:
    with pytest.raises(ResourceError) as raised:
        convert.notification(
            notification_resource(webhook={"url": "https://me:hunter2@a", "secrets": ["key"]})
        )
    assert "hunter2" not in str(raised.value)


def test_a_notification_is_published_changed_and_taken_out() -> None:
    api, topics = MemoryApi([], []), MemoryTopics()
    resource = notification_resource()
    del resource["metadata"]["finalizers"]
    api.resources[NOTIFICATION] = [resource]
    topics.publish(NOTIFICATIONS.name, "other", b"{}")
    seconds = [0.0]
    reconciler = Reconciler(
        api, topics.view, topics.publish, lambda *_: {}, lambda _: {}, clock=lambda: seconds[0]
    )
    reconciler.reconcile()
    assert FINALIZER in resource["metadata"]["finalizers"]
    first = topics.rows[NOTIFICATIONS.name]["guards"]
    assert from_json(first, Notification) == convert.notification(resource)
    assert resource["status"]["target"] == "https://hooks.example.org/lookout"
    assert resource["status"]["observedGeneration"] == 1
    resource["spec"]["disabled"] = True
    resource["metadata"]["generation"] = 2
    seconds[0] = 10.0
    reconciler.reconcile()
    assert from_json(topics.rows[NOTIFICATIONS.name]["guards"], Notification).disabled
    assert resource["status"]["observedGeneration"] == 2
    resource["metadata"]["deletionTimestamp"] = CREATED
    reconciler.reconcile()
    assert set(topics.rows[NOTIFICATIONS.name]) == {"other"}
    assert resource["metadata"]["finalizers"] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_api_server_holds_the_schema_and_the_status(tmp_path: Path) -> None:
    """The API server for custom resources alone, which takes minutes to build the first time."""
    from tests.api_server import NAMESPACE, ApiServer

    with ApiServer(tmp_path) as server:
        config.load_kube_config(str(server.kubeconfig))
        api = client.CustomObjectsApi()
        where = (GROUP, VERSION, NAMESPACE, NOTIFICATION.plural)
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Notification", "metadata": {"name": "guards"}}
        webhook = {"webhook": {"url": "https://hooks.example.org/lookout", "secrets": ["guards-key"]}}
        wrong: list[dict[str, Any]] = [
            {"disabled": True},
            {**webhook, "apprise": {"urlFile": "slack"}},
            {"webhook": {"url": "https://me:secret@a/b", "secrets": ["key"]}},
            {"webhook": {"url": "https://a", "secrets": []}},
            {"apprise": {"urlFile": "../key"}},
            {**webhook, "severity": "loud"},
            {**webhook, "events": ["opening"]},
            {**webhook, "quietHours": [{"start": "25:00", "end": "06:00"}]},
        ]
        for spec in wrong:
            with pytest.raises(ApiException, match="422"):
                api.create_namespaced_custom_object(*where, {**body, "spec": spec})
        for (channel, _), name in zip(CHANNELS, ("one", "two", "three"), strict=True):
            whole = {**body, "metadata": {"name": name}, "spec": {**EVERY_RULE, **channel}}
            api.create_namespaced_custom_object(*where, whole)
        resources, topics = Resources(NAMESPACE), MemoryTopics()
        reconciler = make(resources, topics)  # type: ignore[arg-type]
        stopped = threading.Event()
        follower = threading.Thread(target=resources.follow, args=(NOTIFICATION, reconciler.mark, stopped))
        follower.start()
        try:
            eventually(lambda: len(resources.known(NOTIFICATION)) == 3)
            reconciler.work_off()
            assert set(topics.rows[NOTIFICATIONS.name]) == {"one", "two", "three"}
            status = api.get_namespaced_custom_object(*where, "two")["status"]
            assert status["target"] == "apprise, file slack"
            assert status["conditions"][0]["status"] == "True"
            api.delete_namespaced_custom_object(*where, "two")

            def gone() -> bool:
                reconciler.work_off()
                return len(api.list_namespaced_custom_object(*where)["items"]) == 2

            eventually(gone)
            assert set(topics.rows[NOTIFICATIONS.name]) == {"one", "three"}
        finally:
            stopped.set()
            # Its watch ends with the next event.
            api.create_namespaced_custom_object(*where, {**body, "spec": webhook})
            follower.join()
