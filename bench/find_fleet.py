"""How long a person waits for the first hit of a search, on a real fleet without other load.

One film of each kind is published repeatedly, as if cameras had filmed it at different times of the last
hour. Reported are the seconds of wall-clock time from the request to the gateway to the event `hit`, and the
seconds of recall's CPU. The command is timed as a separate process, including its start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from typer.testing import CliRunner

from lookout.cli.app import app
from lookout.cli.connect import reading
from lookout.cli.options import Position
from lookout.cli.watches import write_watches
from lookout.local import Fleet
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.wire import VERDICTS
from tests.eventually import eventually

QUESTIONS = ("lying", "vehicle", "left")
WINDOWS = 24
"""Of a film of 48 seconds."""
OLDEST = timedelta(minutes=55)
"""Footage that was published an hour after it was filmed is not found."""
START_S = 1800.0
STAGES = {"rank": "ranked_s", "verify": "asked_s"}
"""The event that ends a stage, and the seconds until then."""


def first_hits(cameras: int = 12, rounds: int = 5) -> dict[str, Any]:
    """Median seconds to the first hit of searches over a fleet.

    Args:
        cameras: That were filmed.
        rounds: Searches of each question.
    """
    with _filmed(cameras) as (fleet, client):
        pid = fleet.pids()["recall-0"]
        cold = _search(client, QUESTIONS[0])
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for question in QUESTIONS:
                before = _processor_s(pid)
                for name, seconds in _search(client, question).items():
                    found[name].append(seconds)
                found["recall_core_s"].append(_processor_s(pid) - before)
        medians = {name: round(float(np.median(values)), 2) for name, values in found.items()}
        slowest = round(max(found["first_hit_s"]), 2)
        command = [round(_command(fleet, question), 2) for question in QUESTIONS]
    return {
        **medians,
        "slowest_s": slowest,
        "after_start_s": round(cold["first_hit_s"], 2),
        "command_s": float(np.median(command)),
        "cameras": cameras,
        "searches": rounds * len(QUESTIONS),
    }


@contextmanager
def _filmed(cameras: int) -> Iterator[tuple[Fleet, httpx.Client]]:
    """A fleet that has watched all films and remembers them, and a client that is signed in."""
    films = sorted((Path(str(files("watchbench"))) / "films").glob("*.mp4"))
    with Fleet(settings={"model_dir": str(TINY)}, memory="2h", gateway=True, open_servers=True) as fleet:
        watch = Watch(id="person", version=1, question=DEMO_QUESTIONS["person"], rule=Rule(threshold=0.5))
        write_watches(fleet.bootstrap, [watch])
        now = datetime.now(UTC)
        for number in range(cameras):
            filmed = (now - OLDEST * (cameras - number) / cameras).isoformat()
            words = ["publish", str(films[number % len(films)]), "--camera", f"{number}", "--rate", "max"]
            done = CliRunner().invoke(app, [*words, "--captured-at", filmed], env=_environment(fleet))
            assert done.exit_code == 0, done.output
        eventually(lambda: _verdicts(fleet) >= cameras * (WINDOWS - 1), START_S, every=2.0)
        link = f"{fleet.address.gateway}/sign-in/{(fleet.folder / 'gateway-0' / 'sign-in').read_text()}"
        with httpx.Client(base_url=str(fleet.address.gateway), timeout=120.0) as client:
            assert client.get(link).status_code == 303
            eventually(lambda: _remembered(client) == cameras, START_S, every=2.0)
            yield fleet, client


def _environment(fleet: Fleet) -> dict[str, str]:
    return {
        "LOOKOUT_KAFKA": fleet.bootstrap,
        "LOOKOUT_GRPC_TOKEN_FILE": str(fleet.address.grpc_token_file),
    }


def _verdicts(fleet: Fleet) -> int:
    with reading(fleet.bootstrap, [VERDICTS.name], Position(oldest=True)) as reader:
        return sum(1 for _ in reader.until_now())


def _events(client: httpx.Client, question: str, **more: str) -> Iterator[tuple[str, dict[str, Any]]]:
    query = {"question": DEMO_QUESTIONS[question], **more}
    with client.stream("GET", "/v1/find", params=query) as response:
        assert response.status_code == 200, response.read()
        kind = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line:
                yield kind, json.loads(line.removeprefix("data: "))


def _remembered(client: httpx.Client) -> int:
    """Cameras that a search reaches; it computes next to nothing."""
    summaries = [event for kind, event in _events(client, "person", limit="1") if kind == "summary"]
    return int(summaries[-1].get("cameras", 0)) if summaries else 0


def _search(client: httpx.Client, question: str) -> dict[str, float]:
    """Seconds until the stages of a search end, and to its first hit; it is left then."""
    out: dict[str, float] = {}
    begun = time.perf_counter()
    for kind, event in _events(client, question):
        passed = time.perf_counter() - begun
        if (stage := STAGES.get(event.get("stage", ""))) is not None:
            out.setdefault(stage, passed)
        if kind == "hit":
            return {**out, "first_hit_s": passed}
    raise SystemExit(f"{question}: no hit")


def _processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _command(fleet: Fleet, question: str) -> float:
    """Seconds from the start of the command to the line of its first hit."""
    recall = f"127.0.0.1:{fleet.address.grpc['recall-0']}"
    words = ["find", DEMO_QUESTIONS[question], "--recall", recall, "--json"]
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "lookout.cli", *words],
        env={**os.environ, **_environment(fleet)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        passed = time.perf_counter() - begun
        process.stdout.read()
    assert first.startswith('{"hit"'), first
    return passed


if __name__ == "__main__":
    print(json.dumps(first_hits(*map(int, sys.argv[1:3]))))
