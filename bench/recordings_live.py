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
from dataclasses import replace
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.recordings_workers import Worker
from lookout.models import TINY, window_defaults
from lookout.models.engines import Question, WindowRequest
from lookout.models.engines.transformers import TransformersEngine, load_engine
from lookout.models.families import load_tower
from lookout.models.presets import DEFAULT, preset_of
from lookout.models.windows import Planner, StrideBlock
from lookout.services.recordings.settings import RecordingsSettings
from lookout.streams import segment_frames, stream_blocks

PHASES = ("alone", "lower priority", "same priority")
_BEGUN = "begun"
PHASE: Final = 12
"""Windows of a phase."""
PAUSE_S: Final = 0.03
DRAWS: Final = 1000
"""Of the bootstrap."""
FILM: Final = "room"
QUESTION: Final = "Is anyone lying on the ground?"


def film() -> list[StrideBlock]:
    """The blocks of a film, pruned and encoded as the product does it."""
    (path,) = (Path(str(files("watchbench"))) / "films").glob(f"{FILM}-*.mp4")
    tower, sampling, rules = load_tower(TINY), window_defaults(TINY), preset_of(DEFAULT)
    frames = segment_frames(path, tower.grid, sampling.step_us, rules.masks, window_us=sampling.window_us)
    _, members = next(groupby(frames, lambda frame: frame.stream))
    blocks = stream_blocks(
        "gate/1",
        (member.frame for member in members),
        tower,
        rules.masks,
        samples=sampling.block_samples,
        step_us=sampling.step_us,
        window_blocks=sampling.window_blocks,
    )
    return [member.block for member in blocks][:-1]  # the last one is cut short


def history(blocks: Sequence[StrideBlock]) -> Iterator[StrideBlock]:
    """A film again and again: a camera that sees the same place all day."""
    stride_us = window_defaults(TINY).stride_us
    for index in range(1 << 30):
        turn, number = divmod(index, len(blocks))
        shift = turn * len(blocks) * stride_us
        frames = tuple(
            replace(
                frame,
                time_us=frame.time_us + shift,
                slot_us=frame.slot_us + shift,
                last_us=frame.last_us + shift,
            )
            for frame in blocks[number].frames
        )
        yield replace(blocks[number], index=index, frames=frames)


class Windows:
    """Windows of a history, each computed when it is asked for."""

    def __init__(self, engine: TransformersEngine, blocks: Sequence[StrideBlock]) -> None:
        self._engine, self._blocks = engine, history(blocks)
        settings = preset_of(DEFAULT).windows.sampled(window_defaults(TINY))
        self._planner, self._size = Planner(engine.layout, settings), settings.blocks
        self._recent: list[StrideBlock] = []
        self._plan: Any = None
        self.wall_s = 0.0
        """Of the newest window."""

    def next(self) -> bool:
        """Compute the next window; whether it continues the window before."""
        self._recent = [*self._recent, next(self._blocks)][-self._size :]
        begun = time.perf_counter()
        self._plan = self._planner.plan(self._recent, self._plan)
        request = WindowRequest(self._plan, self._recent, [Question("q", QUESTION)])
        self._engine.run([request])[0].unwrap()
        self.wall_s = time.perf_counter() - begun
        whole = len(self._recent) == self._size
        return whole and self._plan.parent is not None

    def close(self) -> None:
        """Free the stream's KV."""
        self._engine.close_stream("gate/1")


def interval(above: Sequence[Any], below: Sequence[Any], of: Any) -> list[float]:
    """95 % of a ratio over bootstrapped rounds: both sides of a round are drawn together."""
    draw = np.random.default_rng(0)
    drawn = [
        of([above[pick] for pick in picks], [below[pick] for pick in picks])
        for picks in draw.integers(len(above), size=(DRAWS, len(above))).tolist()
    ]
    return [round(float(end), 3) for end in np.quantile(drawn, (0.025, 0.975))]


def p95_ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> float:
    """Of the 95th percentiles of all windows of some rounds."""
    return float(np.quantile(np.concatenate(above), 0.95) / np.quantile(np.concatenate(below), 0.95))


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
        if windows.next():
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
