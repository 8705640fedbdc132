"""`make test-gateway-faults`: people write while the gateway, Kafka and PostgreSQL are killed.

Several writers send acts and watches with idempotency keys and repeat what was not answered; a follower reads
events and comes back with its last id. On PostgreSQL there are two gateways, and whoever repeats or comes
back does so at the other one. Afterwards everything that was written is there once, no event is missing or
came twice, and nobody without a token got an answer. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from lookout.local import KafkaServer, RedisServer, create_topics
from tests.eventually import eventually
from tests.fleet.gateway_case import GatewayProcess
from tests.fleet.gateway_records import QUESTION, alert, publish
from tests.postgres import PostgresServer, postgres

INCIDENTS: Final = 200
WRITERS: Final = 3
#: errors of calls that are repeated with the same key
_AGAIN: Final = (httpx.TransportError, httpx.TimeoutException)


@dataclass(slots=True)
class Run:
    """What happens while everything fails."""

    processes: list[GatewayProcess]
    token: str
    written: dict[str, str] = field(default_factory=dict)  # note: incident
    watches: dict[str, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    unauthorised: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    connections: int = 0  # of the follower
    faults: list[str] = field(default_factory=list)
    following: threading.Event = field(default_factory=threading.Event)
    kills: Counter[str] = field(default_factory=Counter)

    def client(self, *, known: bool = True, at: int = 0) -> httpx.Client:
        """A client of one of the gateways, with the token, or without."""
        headers = {"authorization": f"Bearer {self.token}"} if known else {}
        url = self.processes[at % len(self.processes)].url
        return httpx.Client(base_url=url, headers=headers, timeout=60.0)

    def write(self, number: int) -> None:
        """Send acts and watches until the end; each is repeated until it is answered."""
        count = 0
        while not self.stopped.is_set():
            count += 1
            key = f"w{number}-{count}"
            if count % 10:
                incident = alert("gate", random.randrange(INCIDENTS)).incident
                note = {"kind": "note", "note": key}
                self._until_answered("POST", f"/v1/incidents/{incident}/actions", note, key)
                self.written[key] = incident
            else:
                name = f"watch-{number}"
                body = {"question": f"{QUESTION} {count}", "cameras": ["nowhere"]}
                self._until_answered("PUT", f"/v1/watches/{name}", body, key)
                self.watches[name] = self.watches.get(name, 0) + 1

    def _until_answered(self, method: str, path: str, body: dict[str, Any], key: str) -> None:
        """Send one change to one gateway after the other until it is answered."""
        for at in itertools.count():
            try:
                with self.client(at=at) as client:
                    answer = client.request(method, path, json=body, headers={"idempotency-key": key})
            except _AGAIN:
                time.sleep(0.2)
                continue
            if answer.status_code < 300:
                return
            if answer.status_code not in (401, 500, 502, 503):
                self.faults.append(f"{answer.status_code}: {answer.text}")
                return
            time.sleep(0.2)

    def follow(self) -> None:
        """Read events; come back with the id of the last one whenever the connection ends."""
        last = ""
        for at in itertools.count():
            if self.stopped.is_set():
                return
            headers = {"last-event-id": last} if last else {}
            try:
                with (
                    self.client(at=at) as client,
                    client.stream("GET", "/v1/events", headers=headers) as stream,
                ):
                    if stream.status_code != 200:
                        time.sleep(0.2)
                        continue
                    self.connections += 1
                    for line in stream.iter_lines():
                        self.following.set()
                        if line.startswith("id: "):
                            identity = line.removeprefix("id: ")
                        if line.startswith("data: "):
                            self.events.append(json.loads(line.removeprefix("data: ")))
                            last = identity
                        if self.stopped.is_set():
                            break
            except _AGAIN:
                time.sleep(0.2)

    def intrude(self) -> None:
        """Ask without a token, and count what was answered."""
        with self.client(known=False) as client:
            while not self.stopped.wait(0.3):
                for path in ("/v1/incidents", "/v1/events", "/v1/tokens"):
                    try:
                        self.unauthorised += client.get(path).status_code == 200
                    except _AGAIN:
                        continue


def tally(run: Run) -> dict[str, int]:
    """Count what stands against what was written."""
    notes: Counter[str] = Counter()
    stored = 0
    with run.client() as client:
        for incident in set(run.written.values()):
            view = client.get(f"/v1/incidents/{incident}").json()
            notes.update(act["note"] for act in view.get("actions", []))
        stored = sum(1 for key in run.written if notes[key] == 1)
        doubled = sum(count - 1 for count in notes.values() if count > 1)
        for name, count in run.watches.items():
            versions = client.get(f"/v1/watches/{name}").json()["versions"]
            stored += min(count, len(versions))
            # A writer that was not answered when the run ended may have one more.
            doubled += max(0, len(versions) - count - 1)
    numbers = [int(event["id"].split("-")[1]) for event in run.events]
    print(f"{len(numbers)} events were followed over {run.connections} connections", file=sys.stderr)
    if len(numbers) < len(run.written):
        raise SystemExit("the follower missed events: there are fewer of them than acts")
    holes = sum(1 for before, after in itertools.pairwise(numbers) if after != before + 1)
    return {
        "written": len(run.written) + sum(run.watches.values()),
        "stored": stored,
        "doubled": doubled,
        "event_holes": holes,
        "unauthorised_answers": run.unauthorised,
        "kills": run.kills.total(),
        **{f"killed {name}": count for name, count in sorted(run.kills.items())},
    }


def main() -> int:
    """Run; the exit code is 1 where something was lost, doubled or open."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="postgresql")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka, redis = stack.enter_context(KafkaServer()), stack.enter_context(RedisServer())
        settings = {"calls_per_minute": "100000"}
        database = None
        if options.database == "postgresql":
            database = stack.enter_context(postgres(folder))
            settings["database_url"] = database.new_database()
        create_topics(kafka.bootstrap, 2)
        processes = []
        for number in range(1 if database is None else 2):
            (folder / str(number)).mkdir()
            process = GatewayProcess(folder / str(number), kafka.bootstrap, redis.url, settings)
            stack.callback(process.close)
            processes.append(process.start())
        publish(kafka.bootstrap, [alert("gate", number) for number in range(INCIDENTS)])
        figures = _attacked(kafka, processes, database, options.kills)
    print(json.dumps(figures))
    lost = figures["written"] != figures["stored"]
    return int(lost or any(figures[name] for name in ("doubled", "event_holes", "unauthorised_answers")))


def _attacked(
    kafka: KafkaServer, processes: list[GatewayProcess], database: PostgresServer | None, kills: int
) -> dict[str, int]:
    with processes[0].signed_in() as admin:
        eventually(lambda: len(admin.get("/v1/incidents?limit=500").json().get("incidents", [])) == INCIDENTS)
        made = admin.post("/v1/tokens", json={"name": "writer", "role": "operator"}).json()
    run = Run(processes, made["secret"])
    threads = [threading.Thread(target=run.follow), threading.Thread(target=run.intrude)]
    threads[0].start()
    run.following.wait(60)
    threads += [threading.Thread(target=run.write, args=(number,)) for number in range(WRITERS)]
    for thread in threads[1:]:
        thread.start()
    for kill in range(kills):
        time.sleep(random.uniform(0.5, 3.0))
        if kill % 5 == 4:
            kafka.kill()
            time.sleep(0.5)
            kafka.start()
            run.kills["kafka"] += 1
        elif kill % 5 == 2 and database is not None:
            database.kill()
            time.sleep(0.5)
            database.start()
            run.kills["postgresql"] += 1
        else:
            number = kill % len(processes)
            processes[number].service.stop(0.0)
            processes[number].start()
            run.kills[f"gateway-{number}"] += 1
        print(f"kill {kill + 1} of {kills}; {len(run.written)} acts written", file=sys.stderr)
    time.sleep(2.0)
    run.stopped.set()
    publish(kafka.bootstrap, [alert("gate", 0)])  # wakes the follower
    for thread in threads:
        thread.join(120)
    if run.faults:
        raise SystemExit("\n".join(run.faults[:5]))
    return tally(run)


if __name__ == "__main__":
    sys.exit(main())
