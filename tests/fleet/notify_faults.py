"""`make test-notify`: a target fails half of the time while notify and Kafka are killed.

Incidents open, are updated, claimed and closed all the while. Afterwards every event was delivered under one
id, and each incident's in order. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from lookout.cli.connect import make_producer
from lookout.local import KafkaServer, RedisServer, create_topics
from lookout.v1.actions_pb2 import IncidentAction
from lookout.v1.alerts_pb2 import Alert
from tests.fleet.notify_case import (
    HookServer,
    NotifyProcess,
    act,
    alert,
    configure,
    half_failing,
    notifying,
    publish,
    webhook,
)

_UPDATES: Final = 3
#: seconds between incidents: a target that fails half of the time takes a few events a second
_PAUSE_S: Final = 1.0
_PATIENCE_S: Final = 600.0


def attacked(folder: Path, kills: int, seed: int = 3) -> dict[str, int]:
    """Kill notify and Kafka so many times while incidents come; what arrived, counted."""
    draw = random.Random(seed)
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer())
        redis = stack.enter_context(RedisServer())
        create_topics(kafka.bootstrap, 2)
        target = stack.enter_context(HookServer(answer=half_failing()))
        other = stack.enter_context(HookServer())
        configure(kafka.bootstrap, webhook("failing", target.url), webhook("sound", other.url))
        process = NotifyProcess(folder, kafka.bootstrap, redis.url)
        stack.enter_context(notifying(process))
        stopped = threading.Event()
        published: list[str] = []

        def incidents() -> None:
            number, producer = 0, make_producer(kafka.bootstrap)
            while not stopped.is_set():
                number += 1
                happened: list[Alert | IncidentAction] = [
                    alert(number, Alert.KIND_OPENED),
                    act(number, IncidentAction.KIND_CLAIM),
                    *(alert(number, Alert.KIND_UPDATED, count) for count in range(1, _UPDATES + 1)),
                    alert(number, Alert.KIND_CLOSED, _UPDATES + 1),
                ]
                for event in happened:
                    publish(producer, event)
                    published.append(event.id)
                stopped.wait(_PAUSE_S)

        publisher = threading.Thread(target=incidents)
        publisher.start()
        for kill in range(kills):
            time.sleep(draw.uniform(0.2, 3.0))
            if kill % 5 == 4:
                kafka.kill()
                time.sleep(0.5)
                kafka.start()
            else:
                process.service.stop(0.0)
                process.start()
            print(f"kill {kill + 1} of {kills}; {len(published)} events", file=sys.stderr)
        stopped.set()
        publisher.join(_PATIENCE_S)
        for server in (target, other):
            deadline = time.monotonic() + _PATIENCE_S
            while len(server.taken()) < len(published) and time.monotonic() < deadline:
                time.sleep(0.5)
                if process.service.pid is None:  # as `lookout up` does: it ended itself
                    process.start()
            assert not server.faults, server.faults
        return {
            name: number + tally(other, published)[name] for name, number in tally(target, published).items()
        }


def tally(server: HookServer, published: list[str]) -> dict[str, int]:
    """What a target got of what was published."""
    order = {identity: place for place, identity in enumerate(published)}
    ids: dict[str, set[str]] = defaultdict(set)  # of an event
    events: dict[str, set[str]] = defaultdict(set)  # of an id
    by_incident: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for hit in server.taken():
        happened = hit.happened
        ids[happened["id"]].add(hit.id)
        events[hit.id].add(happened["id"])
        # Kafka orders what is in one topic.
        by_incident[happened["incident"], "actor" in happened].append(order[happened["id"]])
    return {
        "sent": len(published),
        "delivered": len(ids),
        "doubled_ids": sum(len(each) > 1 for each in (*ids.values(), *events.values())),
        "out_of_order": sum(places != sorted(places) for places in by_incident.values()),
        "copies": sum(hit.taken for hit in server.hits) - len(events),
    }


def main() -> int:
    """Run it; 1 where something is lost, doubled or out of order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    with tempfile.TemporaryDirectory() as folder:
        counts = attacked(Path(folder), parser.parse_args().kills)
    print(json.dumps(counts))
    return int(counts["sent"] != counts["delivered"] or bool(counts["doubled_ids"] + counts["out_of_order"]))


if __name__ == "__main__":
    sys.exit(main())
