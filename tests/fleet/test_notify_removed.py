"""A notification that is removed while notify is down: the next process takes its entities back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from lookout.cli.connect import make_producer
from lookout.local import KafkaServer, create_topics
from lookout.rules.notifications import secret_file
from lookout.services.notify.channels.mqtt_channel import entity_key
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.notifications_pb2 import Mqtt, Notification
from lookout.wire import NOTIFICATIONS
from tests.eventually import eventually
from tests.fleet.notify_case import NotifyProcess, alert, configure, notifying, publish
from tests.fleet.test_notify_mqtt import Listener, mosquitto

pytestmark = [pytest.mark.fleet, pytest.mark.long]


def test_the_next_process_takes_back_what_a_removed_notification_left(
    broker: KafkaServer, redis_url: str, tmp_path: Path
) -> None:
    create_topics(broker.bootstrap, 2)
    process = NotifyProcess(tmp_path, broker.bootstrap, redis_url, {})
    producer = make_producer(broker.bootstrap)
    with mosquitto(tmp_path, ["allow_anonymous true"]) as port:
        target = Mqtt(host="127.0.0.1", port=port, username="home", password_file=secret_file("home"))
        with notifying(process):
            password = process.secrets / secret_file("home")
            password.write_text("of the tests")
            configure(broker.bootstrap, Notification(id="home", mqtt=target))
            time.sleep(1.0)  # the table follows
            publish(producer, alert(1, Alert.KIND_OPENED))
            listener = Listener(port)
            listener.wait(f"lookout/{entity_key('gate', 'fall')}/state", b"ON")
            assert process.service.pid is not None
            os.killpg(process.service.pid, signal.SIGKILL)
            process.service.stop(1.0)
            producer.produce(NOTIFICATIONS.name, None, "home")
            producer.flush()
            process.start()
            # What programs are told is not retained: it came, or the process was killed before it was sent.
            eventually(
                lambda: {topic for topic, left in listener.got.items() if left} <= {"lookout/events"}, 60
            )
            eventually(lambda: not password.exists(), 60)
            listener.close()
