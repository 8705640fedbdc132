"""What a verdict costs alerts, and what a window's watches cost prefill, with 1, 200 and 3 000 watches.

Every watch has an open incident, the dearest state there is; 3 000 watches are those of 15 cameras. The
last line is JSON: times relative to one watch of the same run.
"""

from __future__ import annotations

import json
import time
from types import MappingProxyType

from lookout.runtime.worker import Record, View
from lookout.runtime.worker.tables import PastRow
from lookout.services.alerts.handler import AlertsHandler
from lookout.services.alerts.watch_rules import WatchRules
from lookout.services.prefill.watches import Watches
from lookout.streams.chains.verdicts import WindowTime, outcome
from lookout.v1.verdicts_pb2 import Evidence, Verdict
from lookout.v1.watches_pb2 import Rule, ScheduleEntry, Watch
from lookout.wire import VERDICTS, to_json

NUMBERS = (1, 200, 3000)
A_CAMERA = 200
WINDOWS = 12
REPEATS = 3


def watches_of(number: int) -> list[Watch]:
    """Watches of 200 a camera, each with a schedule that its rule has to be built with."""
    rule = Rule(schedule=[ScheduleEntry(start="00:00", end="24:00", time_zone="Europe/Berlin")])
    return [
        Watch(id=f"w{n}", version=1, question="Is anyone lying?", cameras=[f"cam{n // A_CAMERA}"], rule=rule)
        for n in range(number)
    ]


def verdict_bytes(watch: Watch, window: int) -> bytes:
    """One answer that is yes."""
    camera = watch.cameras[0]
    span = WindowTime(camera, 1000, 0, window, window * 8_000_000, (window + 1) * 8_000_000)
    verdict = outcome(span, watch, Verdict.OUTCOME_ANSWERED)
    verdict.p_yes, verdict.watches_offset = 0.9, 1 << 40
    verdict.evidence.extend(Evidence(row=row) for row in range(3))
    return to_json(verdict)


def alerts_seconds(number: int) -> float:
    """Seconds of the alerts handler for one verdict; checkpoints are serialised once a window."""
    watches = watches_of(number)
    table = {watch.id: (PastRow(place, to_json(watch)),) for place, watch in enumerate(watches)}
    handler = AlertsHandler(lambda *_: True, watch_rules=WatchRules(lambda key: table.get(key, ())))
    states = {camera: handler.load(camera, None) for camera in {watch.cameras[0] for watch in watches}}
    records = [
        [
            Record(VERDICTS.name, 0, 0, watch.cameras[0], verdict_bytes(watch, window), (), 0)
            for watch in watches
        ]
        for window in range(WINDOWS)
    ]
    begun = 0.0
    for window, batch in enumerate(records):
        if window == 2:  # by then every incident is open
            begun = time.process_time()
        newest = {}
        for record in batch:
            newest[record.camera] = handler.handle(states[record.camera], record).checkpoint
        for checkpoint in newest.values():
            assert checkpoint is not None
            checkpoint.SerializeToString()
    return (time.process_time() - begun) / ((WINDOWS - 2) * number)


def prefill_seconds(number: int) -> float:
    """Seconds in which prefill finds the watches of one window, for each of them."""
    rows = {watch.id: (to_json(watch),) for watch in watches_of(number)}
    view = View(MappingProxyType(rows), len(rows))
    watches = Watches(lambda: view)
    watches.active("cam0", 0)
    begun = time.process_time()
    asked = 0
    for window in range(2000):
        asked += len(watches.active("cam0", window * 8000).watches)
    return (time.process_time() - begun) / asked


def main() -> None:
    """Print the ratios."""
    alerts = {number: min(alerts_seconds(number) for _ in range(REPEATS)) for number in NUMBERS}
    prefill = {number: min(prefill_seconds(number) for _ in range(REPEATS)) for number in NUMBERS}
    print(
        json.dumps(
            {
                "watches": list(NUMBERS),
                "alerts_verdict": [round(alerts[number] / alerts[1], 2) for number in NUMBERS],
                "prefill_watch": [round(prefill[number] / prefill[1], 2) for number in NUMBERS],
            }
        )
    )


if __name__ == "__main__":
    main()
