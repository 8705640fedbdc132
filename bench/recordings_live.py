"""Windows of a live camera beside parts of recordings: a part of `make bench-recordings`.

This process computes windows, as prefill does; a process beside it answers the parts of a recording over and
over, as the service does, with its decoder. Phases take turns: no parts, parts at the service's lower
priority (LOOKOUT_NICENESS), and parts at the same one. The processes stop and go on by signals, so all phases
meet the same machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.recall import PAUSE_S, PHASE, Windows, film, interval, p95_ratio
from bench.recordings_workers import Worker
from lookout.models import TINY
from lookout.models.engines import load_engine
from lookout.services.recordings.settings import RecordingsSettings

PHASES = ("alone", "lower priority", "same priority")
_BEGUN = "begun"


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Time of incremental windows beside parts, by that without any, with 95 % intervals over rounds.

    Args:
        path: The recording.
        rounds: Of one phase of each kind; one more warms up.
    """
    niceness = RecordingsSettings.model_fields["niceness"].default
    spent: dict[str, list[list[float]]] = {kind: [] for kind in PHASES}
    engine = load_engine(TINY, budget_bytes=1 << 30)
    with ExitStack() as stack:
        stack.callback(engine.close)
        windows = Windows(engine, film())
        groups = {
            "lower priority": stack.enter_context(_answering(path, niceness)),
            "same priority": stack.enter_context(_answering(path, 0)),
        }
        for number in range(rounds + 1):
            for place in range(len(PHASES)):
                kind = PHASES[(number + place) % len(PHASES)]
                if kind in groups:
                    os.killpg(groups[kind], signal.SIGCONT)
                spent[kind].append(list(_windows(windows)))
                if kind in groups:
                    os.killpg(groups[kind], signal.SIGSTOP)
    alone, lower, same = (spent[kind][1:] for kind in PHASES)
    return {
        "latency_beside_jobs": round(p95_ratio(lower, alone), 3),
        "latency_interval": interval(lower, alone, p95_ratio),
        "latency_median": round(_median(lower) / _median(alone), 3),
        "latency_same_priority": round(p95_ratio(same, alone), 3),
        "same_priority_interval": interval(same, alone, p95_ratio),
        "windows": sum(map(len, alone)),
    }


def _median(rounds: Sequence[Sequence[float]]) -> float:
    return float(np.median(np.concatenate(rounds)))


def _windows(windows: Windows) -> Iterator[float]:
    """Seconds of the incremental windows of a phase."""
    for _ in range(PHASE):
        _, incremental = windows.next()
        if incremental:
            yield windows.wall_s
        time.sleep(PAUSE_S)


@contextmanager
def _answering(path: Path, niceness: int) -> Iterator[int]:
    """A process that answers parts, stopped; its group."""
    command = [sys.executable, "-m", "bench.recordings_live", str(path), str(niceness)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        while process.stdout.readline().strip() != _BEGUN:
            if process.poll() is not None:
                raise SystemExit("the process that answers parts ended")
        os.killpg(process.pid, signal.SIGSTOP)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def main() -> None:
    """Answer parts for ever."""
    path, niceness = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    os.nice(niceness)
    with Worker(path) as worker:
        worker.answered([0])
        print(_BEGUN, flush=True)
        while True:
            worker.answered(range(worker.parts))


if __name__ == "__main__":
    main()
