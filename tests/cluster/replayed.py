"""``python -m tests.cluster.replayed BOOTSTRAP``: the verdicts of back-tests that a fleet has answered.

A program of its own, because it runs on the network outside the cluster, where Kafka is. Prints one verdict
of `recording.results.v1` a line, as JSON, with its job and camera.
"""

from __future__ import annotations

import json
import sys

from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.v1.recordings_pb2 import RecordingOutcome
from lookout.wire import RECORDING_RESULTS, from_bytes, to_json


def main(bootstrap: str) -> None:
    """Print what every part of every back-test computed."""
    with reading(bootstrap, [RECORDING_RESULTS.name], Position(oldest=True)) as reader:
        for message in reader.until_now():
            outcome = from_bytes(message.value() or b"", RecordingOutcome)
            for stream in outcome.part.backtest.streams:
                for verdict in stream.verdicts:
                    row = {**json.loads(to_json(verdict)), "job": outcome.job, "camera": stream.camera}
                    print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1])
