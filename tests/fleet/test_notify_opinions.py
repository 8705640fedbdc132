"""Second opinions by the real notify process: a fake model and a real HTTP target, through kills."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from lookout.cli.connect import make_producer, reading
from lookout.cli.options import Position
from lookout.local import KafkaServer, create_topics
from lookout.v1.alerts_pb2 import Alert, SecondOpinion
from lookout.v1.watches_pb2 import Watch
from lookout.wire import ALERTS, WATCHES, from_json, to_json
from tests.eventually import eventually
from tests.fleet.notify_case import HookServer, NotifyProcess, alert, configure, notifying, publish, webhook
from tests.second_model import SecondModel

pytestmark = [pytest.mark.fleet, pytest.mark.long]

LINK_KEY = b"a key of links, of the tests"


def test_a_second_model_is_asked_once_through_kills(
    broker: KafkaServer, redis_url: str, tmp_path: Path
) -> None:
    """Killed while questions are under way: none is asked twice, and all is told, with what is known."""
    incidents = range(500, 512)

    def says(question: str) -> tuple[int, str]:
        time.sleep(0.2)
        return 200, "Yes."

    create_topics(broker.bootstrap, 2)
    (tmp_path / "link-key").write_bytes(LINK_KEY)
    with SecondModel(says) as model, HookServer() as target:
        settings = {
            "public_url": model.url,
            "link_key_file": str(tmp_path / "link-key"),
            "opinion_url": f"{model.url}/v1",
            "opinion_model": "big",
        }
        process = NotifyProcess(tmp_path, broker.bootstrap, redis_url, settings)
        watch = Watch(id="verified", version=1, question="Is it?", verify=True)
        producer = make_producer(broker.bootstrap)
        producer.produce(WATCHES.name, to_json(watch), watch.id)
        configure(broker.bootstrap, webhook("hook", target.url, cameras=["verified"]))
        with notifying(process):
            time.sleep(1.0)  # the tables follow
            for number in incidents:
                event = alert(number, Alert.KIND_OPENED, camera="verified")
                event.watch, event.question = watch.id, f"Is it {number}?"
                publish(producer, event)
                if number % 4 == 2:
                    eventually(lambda: bool(model.asked), 60)
                    assert process.service.pid is not None
                    os.killpg(process.service.pid, signal.SIGKILL)
                    process.service.stop(1.0)
                    process.start()
            eventually(lambda: len(target.taken()) == len(incidents), 120)
    questions = [body["messages"][0]["content"][1]["text"] for body in model.asked]
    assert len(questions) == len(set(questions)) > 0
    told = {hit.happened["incident"]: hit.happened["opinion"] for hit in target.taken()}
    assert {opinion["answer"] for opinion in told.values()} <= {"yes", "none"}
    assert "yes" in {opinion["answer"] for opinion in told.values()}
    with reading(broker.bootstrap, [ALERTS.name], Position(oldest=True)) as reader:
        events = [from_json(message.value() or b"", Alert) for message in reader.until_now()]
    opinions = [event for event in events if event.kind == Alert.KIND_OPINION and event.camera == "verified"]
    assert sorted(event.incident for event in opinions) == sorted(told)
    for event in opinions:
        answer = SecondOpinion.Answer.Name(event.opinion.answer).removeprefix("ANSWER_").lower()
        assert told[event.incident]["answer"] == answer
