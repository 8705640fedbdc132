"""Apprise over a real HTTP server, where libraries may connect to, and links that end."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from apprise.plugins import pagerduty

from lookout.errors import StartupError
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.guarded_resolving import guarded
from lookout.runtime.net.links import is_signed, read_link_key, signed_link
from lookout.services.notify.channels import apprise_channel as apprise_channel_module
from lookout.services.notify.channels.apprise_channel import PagingChannel, apprise_channel
from lookout.services.notify.composing import sentence
from lookout.services.notify.messages import Channel, DeliveryError, GroupingChannel, Message
from lookout.services.notify.secrets import Secrets
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Apprise, NotificationEvent
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL, SEVERITY_WARNING, Severity
from tests.fleet.notify_case import act, alert

#: a plugin of Apprise imports a module that Python removes
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")

PICTURE = b"\xff\xd8 a picture"
HERE = ("127.0.0.1", "localhost")


class Service:
    """An HTTP service that Apprise posts JSON to."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(service.status)
                self.send_header("location", "http://10.9.8.7/")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


@pytest.fixture
def service(server: Service) -> Service:
    server.got.clear()
    server.status = 200
    return server


def allowed(hosts: tuple[str, ...] = HERE) -> UriFetcher:
    return UriFetcher(("http",), hosts, ("127.0.0.0/8", "::1/128"), settings="LOOKOUT_NOTIFY")


def channel(folder: Path, url: str, hosts: tuple[str, ...] = HERE, *, picture: bool = False) -> Channel:
    (folder / "url").write_text(url)
    target = Apprise(url_file="url", picture=picture)
    return apprise_channel(target, Secrets(folder), allowed(hosts), lambda _: PICTURE)


def message(number: int = 1, camera: str = "gate") -> Message:
    event = NotificationEvent(
        notification="n",
        severity=SEVERITY_CRITICAL,
        alert=alert(number, Alert.KIND_OPENED, camera=camera),
        text=f"{camera}: yes",
        console_url="https://lookout.test/#/incidents/1",
    )
    return Message(f"id-{number}", event, number)


def test_text_link_and_kind_arrive(service: Service, tmp_path: Path) -> None:
    channel(tmp_path, service.url).send(message())
    (got,) = service.got
    assert got["message"] == "gate: yes\nhttps://lookout.test/#/incidents/1"
    assert got["type"] == "failure"
    assert got["attachments"] == []


def test_the_picture_is_attached(service: Service, tmp_path: Path) -> None:
    channel(tmp_path, service.url, picture=True).send(message())
    (attached,) = service.got[0]["attachments"]
    assert base64.b64decode(attached["base64"]) == PICTURE


def test_a_group_counts_and_names_the_newest(service: Service, tmp_path: Path) -> None:
    messages = [message(number, f"camera-{number % 8}") for number in range(20)]
    people = channel(tmp_path, service.url)
    assert isinstance(people, GroupingChannel)
    people.send_group(messages)
    (got,) = service.got
    assert got["message"].startswith("20 messages about 20 incidents of camera-")
    assert "and 3 more" in got["message"]
    assert "camera-3: yes" in got["message"]


@pytest.mark.parametrize(
    ("kind", "severity", "shown"),
    [
        (Alert.KIND_OPENED, SEVERITY_CRITICAL, "failure"),
        (Alert.KIND_OPENED, SEVERITY_WARNING, "warning"),
        (Alert.KIND_CLOSED, SEVERITY_CRITICAL, "success"),
        (Alert.KIND_REPORT, SEVERITY_WARNING, "info"),
    ],
)
def test_what_happened_is_seen_by_its_kind(
    service: Service, tmp_path: Path, kind: Alert.Kind, severity: Severity, shown: str
) -> None:
    told = message()
    told.event.alert.kind, told.event.severity = kind, severity
    channel(tmp_path, service.url).send(told)
    assert service.got[0]["type"] == shown


#: URLs of services that page people, as the documentation of Apprise has them
PAGING = {
    "pagerduty": "pagerduty://{0}@{0}",
    "opsgenie": "opsgenie://{0}",
    "jira": "jira://{0}",
    "splunk": "splunk://route@{0}",
    "squadcast": "squadcast://{0}",
    "goalert": "goalert://127.0.0.1/{0}",
    "incidentio": "incidentio://{0}/{0}",
    "ilert": "ilert://{0}",
    "firehydrant": "firehydrant://{0}",
    "signl4": "signl4://{0}",
    "pagertree": "pagertree://int_{0:.10}",
}


@pytest.mark.parametrize("name", PAGING)
def test_services_that_page_get_each_incident_as_one_page(tmp_path: Path, name: str) -> None:
    """Apprise's plugin has the attribute that the page's key is put into, and knows the action."""
    pager = channel(tmp_path, PAGING[name].format("0123456789abcdef0123456789abcdef"))
    assert isinstance(pager, PagingChannel)
    assert not isinstance(pager, GroupingChannel)
    (plugin,) = pager._apprise
    key = apprise_channel_module._page_key(plugin)
    assert key is not None
    assert hasattr(plugin, key)
    assert "map" in plugin.template_args["action"]["values"]


def test_a_page_is_raised_once_and_resolved_by_the_incidents_end(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apprise_channel_module, "_PAGE_S", 0.0)
    monkeypatch.setattr(pagerduty, "PAGERDUTY_API_LOOKUP", {"us": service.url.replace("json", "http")})
    pager = channel(tmp_path, PAGING["pagerduty"].format("0123456789abcdef0123456789abcdef"))
    kinds = (Alert.KIND_OPENED, Alert.KIND_UPDATED, Alert.KIND_CLOSED, Alert.KIND_REPORT)
    for number, kind in enumerate(kinds):
        told = message()
        told.event.alert.kind = kind
        pager.send(Message(f"id-{number}", told.event, number))
    for note in (IncidentAction.KIND_NOTE, IncidentAction.KIND_CLAIM):  # would page somebody again
        acted = NotificationEvent(alert=message().event.alert, action=act(1, note), text="gate: noted")
        pager.send(Message("acted", acted, 9))
    pager.send(message(2))
    sent = [(got["event_action"], got["dedup_key"]) for got in service.got]
    assert sent == [
        ("trigger", "incident-1"),
        ("trigger", "incident-1"),
        ("resolve", "incident-1"),
        ("trigger", "incident-2"),
    ]
    assert service.got[0]["payload"]["severity"] == "critical"


def test_a_service_that_fails_is_not_delivered(service: Service, tmp_path: Path) -> None:
    service.status = 500
    with pytest.raises(DeliveryError, match="500"):
        channel(tmp_path, service.url).send(message())


def test_apprise_reaches_allowed_hosts_alone(service: Service, tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="Apprise"):
        channel(tmp_path, service.url, ("elsewhere.example",)).send(message())
    assert service.got == []


def test_a_redirect_leads_nowhere_else(service: Service, tmp_path: Path) -> None:
    service.status = 307
    with pytest.raises(DeliveryError):
        channel(tmp_path, service.url).send(message())


@pytest.mark.parametrize("url", ["", "no url", "unknown://x"])
def test_a_url_that_apprise_does_not_know(tmp_path: Path, url: str) -> None:
    with pytest.raises(DeliveryError, match="url"):
        channel(tmp_path, url)


def test_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="absent"):
        Secrets(tmp_path).read("absent")
    with pytest.raises(DeliveryError, match="LOOKOUT_NOTIFY_SECRETS"):
        Secrets(None).read("key")


@pytest.mark.parametrize("host", ["10.9.8.7", "169.254.169.254", "0x7f000001", "elsewhere.example", "[::1]"])
def test_a_guarded_thread_resolves_allowed_hosts_alone(host: str) -> None:
    with (
        guarded(allowed(("*.example.org", "127.0.0.1"))),
        pytest.raises(socket.gaierror, match="LOOKOUT_NOTIFY"),
    ):
        socket.create_connection((host, 80), timeout=0.1)


def test_an_allowed_name_with_a_private_address_is_not_reached() -> None:
    narrow = UriFetcher(("http",), ("localhost",), settings="LOOKOUT_NOTIFY")
    with guarded(narrow), pytest.raises(socket.gaierror, match="LOOKOUT_NOTIFY_NETWORKS"):
        socket.create_connection(("localhost", 80), timeout=0.1)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_guard_of_the_process_holds_on_threads_of_libraries(is_guarded: bool) -> None:
    program = f"""
import socket, threading
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.guarded_resolving import guard_process, unguarded
if {is_guarded}:
    guard_process(UriFetcher(("http",), ()))
def look() -> None:
    try:
        print(len(socket.getaddrinfo("127.0.0.1", 80)) > 0)
    except socket.gaierror:
        print("refused")
thread = threading.Thread(target=look)
thread.start()
thread.join()
with unguarded():
    look()
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.split() == ["refused" if is_guarded else "True", "True"]


def test_other_threads_are_not_guarded() -> None:
    answers: list[Any] = []
    with guarded(allowed(())):
        thread = threading.Thread(target=lambda: answers.append(socket.getaddrinfo("127.0.0.1", 80)))
        thread.start()
        thread.join()
    assert answers
    assert socket.getaddrinfo("127.0.0.1", 80)


def test_a_link_is_of_one_path_key_and_time() -> None:
    link = signed_link(b"a key of sixteen", "https://lookout.test/", "/v1/x.jpg", 60)
    assert link.startswith("https://lookout.test/v1/x.jpg?until=")
    until, signature = (part.partition("=")[2] for part in link.partition("?")[2].split("&"))
    assert is_signed(b"a key of sixteen", "/v1/x.jpg", int(until), signature)
    assert not is_signed(b"a key of sixteen", "/v1/y.jpg", int(until), signature)
    assert not is_signed(b"a key of sixteen", "/v1/x.jpg", int(until) + 1, signature)
    assert not is_signed(b"another sixteen!", "/v1/x.jpg", int(until), signature)
    assert not is_signed(b"a key of sixteen", "/v1/x.jpg", int(until), "ä")


def test_a_short_key_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short")
    with pytest.raises(StartupError, match="16 bytes"):
        read_link_key(tmp_path / "key", "LOOKOUT_LINK_KEY_FILE")


@pytest.mark.parametrize(
    ("happened", "text"),
    [
        (alert(0, Alert.KIND_OPENED), "Yes, p(yes) 0.90, at "),
        (alert(0, Alert.KIND_UPDATED, 1), "Still yes, p(yes) 0.90"),
        (alert(0, Alert.KIND_CLOSED, 59), "No longer, after 60 s."),
        (act(0, IncidentAction.KIND_FALSE_POSITIVE), "was marked as a false alarm by ada"),
    ],
)
def test_sentences(happened: Alert | IncidentAction, text: str) -> None:
    assert sentence(happened).startswith("gate: Is anyone lying on the ground?")
    assert text in sentence(happened)


def test_a_fault_of_a_camera_has_no_probability() -> None:
    happened = Alert(kind=Alert.KIND_OPENED, camera="gate", question="The lens is covered.", cause="covered")
    assert sentence(happened) == "gate: The lens is covered. Since 00:00:00 UTC."
