"""Web Push: what a browser decrypts, whose message a push service sees, and browsers that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from lookout.errors import StartupError
from lookout.rules import RuleError
from lookout.rules.notifications import check_notification, target_text
from lookout.runtime.net.fetch import UriFetcher
from lookout.runtime.net.push_keys import new_push_key, public_push_key, push_key_pair, read_push_key
from lookout.services.notify.channels.push_channel import PushChannel
from lookout.services.notify.messages import DeliveryError, Message
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Notification, NotificationEvent, WebPush
from lookout.v1.watches_pb2 import SEVERITY_CRITICAL
from tests.fleet.notify_case import alert
from tests.fleet.push_service import PushService, decoded, decrypt


@pytest.fixture(scope="module")
def server() -> Iterator[PushService]:
    with PushService() as service:
        yield service


@pytest.fixture
def service(server: PushService) -> PushService:
    server.got.clear()
    server.status = 201
    return server


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "push-key"
    path.write_bytes(new_push_key())
    return path


def channel(service: PushService, key_file: Path, hosts: tuple[str, ...] = ("127.0.0.1",)) -> PushChannel:
    allowed = UriFetcher(("http",), hosts, ("127.0.0.0/8",), settings="LOOKOUT_NOTIFY")
    return PushChannel(service.subscription, push_key_pair(key_file, "KEY"), "lookout@lookout.test", allowed)


def message(number: int = 1, kind: Alert.Kind = Alert.KIND_OPENED, text: str = "gate: yes") -> Message:
    event = NotificationEvent(
        notification="n", severity=SEVERITY_CRITICAL, alert=alert(number, kind), text=text
    )
    return Message(f"id-{number}", event, number)


def test_the_decryption_of_these_tests_reads_the_example_of_the_standard() -> None:
    """RFC 8291, section 5."""
    private = int.from_bytes(decoded("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"))
    body = (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8w"
        "EqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )
    key = ec.derive_private_key(private, ec.SECP256R1())
    said = decrypt(decoded(body), key, decoded("BTBZMqHH6r4Tts7J_aSIgg"))
    assert said == b"When I grow up, I want to be a watermelon"


def test_a_browser_shows_what_happened(service: PushService, key_file: Path) -> None:
    link = channel(service, key_file)
    link.send(message())
    link.send(message(kind=Alert.KIND_CLOSED))
    (headers, opened), (_, closed) = service.got
    assert (opened["text"], opened["incident"]) == ("gate: yes", "incident-1")
    assert (opened["critical"], closed["critical"], closed["silent"]) == (True, False, True)
    assert opened["topic"] == closed["topic"], "a newer message replaces the one before"
    assert (headers["content-encoding"], headers["urgency"], headers["ttl"]) == ("aes128gcm", "high", "86400")
    assert len(headers["topic"]) <= 32


def test_a_push_service_sees_whose_message_it_is(service: PushService, key_file: Path) -> None:
    channel(service, key_file).send(message())
    scheme, token, shown = service.got[0][0]["authorization"].replace(",", "").split(" ")
    key = read_push_key(key_file, "KEY")
    assert (scheme, shown) == ("vapid", f"k={public_push_key(key)}")
    claims = jwt.decode(
        token.removeprefix("t="), key.public_key(), algorithms=["ES256"], audience="http://127.0.0.1"
    )
    assert claims["sub"] == "mailto:lookout@lookout.test"


def test_a_flood_is_one_message_that_counts(service: PushService, key_file: Path) -> None:
    channel(service, key_file).send_group([message(number) for number in range(20)])
    ((_, shown),) = service.got
    assert shown["text"].startswith("20 messages about 20 incidents")


def test_the_longest_text_fits_what_push_services_take(service: PushService, key_file: Path) -> None:
    channel(service, key_file).send(message(text="\U0001f6b6" * 4000))
    assert int(service.got[0][0]["content-length"]) <= 4096


@pytest.mark.parametrize(("status", "final"), [(404, True), (410, True), (429, False), (500, False)])
def test_a_browser_that_is_gone_is_told_no_more(
    service: PushService, key_file: Path, status: int, final: bool
) -> None:
    service.status = status
    with pytest.raises(DeliveryError) as raised:
        channel(service, key_file).send(message())
    assert raised.value.final is final
    assert "/browser" not in str(raised.value), "whoever has the address of a browser could try to reach it"


def test_a_push_service_that_is_not_allowed_is_not_reached(service: PushService, key_file: Path) -> None:
    with pytest.raises(DeliveryError, match="LOOKOUT_NOTIFY_HOSTS"):
        channel(service, key_file, ("push.example.org",)).send(message())
    assert service.got == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"endpoint": "ftp://push"}, "push.endpoint"),
        ({"auth": "c2hvcnQ"}, "push.auth: give the 16 bytes"),
        ({"p256dh": "not base64!"}, "push.p256dh: give the 65 bytes"),
        ({"p256dh": "A" * 87}, "uncompressed point"),
    ],
)
def test_a_subscription_is_checked(service: PushService, changes: dict[str, str], words: str) -> None:
    push = service.subscription
    good = Notification(id="n", push=push)
    check_notification(good)
    for name, value in changes.items():
        setattr(push, name, value)
    with pytest.raises(RuleError, match=words):
        check_notification(Notification(id="n", push=push))


def test_lists_name_the_person_and_not_the_address() -> None:
    push = WebPush(endpoint="https://push/secret", person="kim")
    assert target_text(Notification(push=push)) == "browser of kim"


def test_a_file_that_is_no_key_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("-----BEGIN")
    with pytest.raises(StartupError, match=r"LOOKOUT_PUSH_KEY_FILE=.*key"):
        read_push_key(tmp_path / "key", "LOOKOUT_PUSH_KEY_FILE")
