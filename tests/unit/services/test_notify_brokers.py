"""Places at brokers: noted before a notification connects, taken back once it is no more."""

from __future__ import annotations

import pytest

from lookout.services.notify.brokers import Brokers, is_key, key_of
from lookout.v1.notifications_pb2 import Mqtt, Notification

HOME = Notification(id="home", mqtt=Mqtt(host="broker", password_file="password", token_file="token"))


def test_a_place_is_noted_once_without_its_token() -> None:
    brokers = Brokers(60.0)
    ((key, noted),) = brokers.added({"home": HOME}).items()
    assert (key, noted.mqtt.password_file, noted.mqtt.token_file) == (key_of(HOME), "password", "")
    assert is_key(key)
    assert not is_key("0d8a4c6f1b2e4f60")  # an incident
    assert brokers.added({"home": HOME}) == {}
    assert brokers.due({"home": HOME}) == ({}, [])


def test_what_a_process_before_this_one_noted_is_taken_back() -> None:
    now = [0.0]
    brokers = Brokers(60.0, clock=lambda: now[0])
    brokers.restore(key_of(HOME), HOME)
    assert brokers.due({}) == ({key_of(HOME): HOME}, [])
    assert brokers.due({}) == ({}, [])  # it is under way
    now[0] = 31.0
    assert brokers.due({}) == ({key_of(HOME): HOME}, [])
    now[0] = 61.0
    assert brokers.due({}) == ({}, [HOME])
    assert brokers.forget(key_of(HOME)) == HOME
    assert brokers.forget(key_of(HOME)) is None
    assert brokers.due({}) == ({}, [])


def test_a_notification_that_comes_back_keeps_its_place() -> None:
    brokers = Brokers(60.0)
    brokers.added({"home": HOME})
    assert brokers.due({})[0]
    assert brokers.due({"home": HOME}) == ({}, [])
    assert brokers.due({})[0]  # it goes again: not given up because it went before


@pytest.mark.parametrize(
    "moved",
    [
        Mqtt(host="other"),
        Mqtt(host="broker", port=1884),
        Mqtt(host="broker", topic="house"),
        Mqtt(host="broker", discovery="ha"),
    ],
)
def test_another_broker_or_topic_is_another_place(moved: Mqtt) -> None:
    brokers = Brokers(60.0)
    brokers.added({"home": HOME})
    home = Notification(id="home", mqtt=moved)
    assert list(brokers.added({"home": home})) == [key_of(home)]
    assert list(brokers.due({"home": home})[0]) == [key_of(HOME)]


def test_another_user_or_a_default_that_is_spelled_out_is_the_same_place() -> None:
    same = Notification(id="home", mqtt=Mqtt(host="broker", topic="lookout", username="somebody"))
    assert key_of(same) == key_of(HOME)
