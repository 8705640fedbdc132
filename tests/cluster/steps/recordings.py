"""Recording resources over files of a claim: answered, refused, cancelled; a worker dies meanwhile.

Afterwards decode pods make the pixels, and the answer stays the same. A back-test of a camera is a job of the
same pods: a watch that is enabled nowhere meanwhile has the verdicts that prefill committed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from lookout.models import TINY
from lookout.recordings.analysis import analyze
from lookout.v1.recordings_pb2 import RecordingAnswers, RecordingJob
from lookout.wire import ANSWERS, RECORDINGS, from_json
from tests.cluster import storage
from tests.cluster.outside import QUESTIONS
from tests.cluster.steps.watches import status, until
from tests.cluster.world import NAMESPACE, RELEASE, SETTLED_S, SILENCE_S, World, kill_pod, settle

CLAIM, FOLDER = "cctv", "yard"
_WORKERS = "app.kubernetes.io/component=recordings"
_PART_FRAMES, _FPS, _SECONDS = 8, 2.0, 48.0
#: the same model, but other processors may round otherwise
_TOLERANCE = 1e-3
#: between prefill's verdicts and those of a back-test: the same code on the same processors
_SAME = 1e-4
_PAST_CAMERA, _PAST_JOB, _LEAST_WINDOWS = "past-room", "past", 20


def run(world: World) -> None:
    """One resource is a job; what it says is what `lookout.analyze` says of the same file."""
    film = copy_film(storage.folder(CLAIM))
    storage.provide(world.cluster, [CLAIM])
    try:
        with world.namespace():
            world.kubectl("apply", "-f", "-", stdin=storage.claim(CLAIM))
            world.install(
                *("--set", "recordings.enabled=true", "--set", "recordings.replicas=2"),
                *("--set", f"recordings.claims.{FOLDER}={CLAIM}"),
            )
            answer(world, film, "monday")
            refuse(world)
            cancel(world)
            world.upgrade("--set", "recordings.decodeReplicas=1")
            answer(world, film, "tuesday")
            decoded_ahead(world)
            backtest(world)
            world.uninstall()
    finally:
        storage.remove(world.cluster, [CLAIM])


def copy_film(folder: Path) -> Path:
    """Copy a film into the folder behind the claim, readable for everybody."""
    (source,) = (Path(str(files("watchbench"))) / "films").glob("room-*.mp4")
    target = folder / "room.mp4"
    target.write_bytes(source.read_bytes())
    target.chmod(0o644)
    return target


def spec(file: str, **more: object) -> dict[str, object]:
    """A Recording that asks whether anyone lies on the ground in a file of the claim."""
    address = f"file:///recordings/{FOLDER}/{file}"
    shape = {"partFrames": _PART_FRAMES, "fps": _FPS}
    return {"recordings": [address], "questions": [QUESTIONS["lying"]], **shape, **more}


def answer(world: World, film: Path, name: str) -> None:
    """A job is answered although a worker dies, and its answer is that of the library."""
    world.check(world.apply("Recording", name, spec(film.name, endSeconds=_SECONDS)), "created")
    until("a part is done", lambda: status(world, f"recording/{name}"), lambda now: now.get("done", 0) > 0)
    world.tell(kill_pod(world, ("recordings",)))
    done = until(
        "a recording is answered",
        lambda: status(world, f"recording/{name}"),
        lambda now: now.get("state") == "done",
    )
    world.tell("kubectl get recordings:\n" + world.kubectl("get", "recordings"))
    settings: dict[str, Any] = {"part_frames": _PART_FRAMES, "fps": _FPS, "end_s": _SECONDS}
    expected = analyze(film, [QUESTIONS["lying"]], model=TINY, **settings)
    (result,) = done["results"]
    (given,) = result["answers"]
    (wanted,) = expected.answers
    world.tell(f"the fleet says {given['pYes']}, the library {wanted.p_yes:.4f}, {done['parts']} parts")
    if done["parts"] != len(expected.parts) or abs(given["pYes"] - wanted.p_yes) > _TOLERANCE:
        world.wrong.append(f"the answer is {given} of {done['parts']} parts; {wanted} was expected")
    world.check(world.apply("Recording", name, spec(film.name, endSeconds=5)), "asked once")


def decoded_ahead(world: World) -> None:
    """Some parts were answered with the pixels of the decode pod; those of the worker that died are lost."""
    world.kubectl("rollout", "status", f"statefulset/{RELEASE}-recordings", "--timeout=120s")
    pods = world.kubectl("get", "pods", "-l", _WORKERS, "-o", "jsonpath={.items[*].metadata.name}").split()
    parts = sum(_events(world, pod).get("ahead", 0.0) for pod in pods)
    if not parts:
        world.wrong.append("no part was answered with the pixels of a decode pod")
    world.tell(f"{parts:.0f} parts were answered with pixels of the decode pod")


def backtest(world: World) -> None:
    """A back-test of a camera, asked as a user would, says what prefill committed of it."""
    client = world.client()
    world.ask(client)
    (film,) = (film for film in world.cast if film.name == "room")
    client.publish(_PAST_CAMERA, film.segments)
    live = settle(client, _PAST_CAMERA, _LEAST_WINDOWS, SILENCE_S + SETTLED_S)
    committed = {int(row["window"]): row for row in live.verdicts if row["watch"] == "lying"}
    words = ("backtest", QUESTIONS["lying"], "--camera", _PAST_CAMERA, "--threshold", "0.5", "--of", "2/3")
    where = ("--since", "start", "--fleet", "--id", _PAST_JOB, "--wait", "--json", "-b", client.bootstrap)
    answer = json.loads(world.cluster.outside(sys.executable, "-m", "lookout.cli", *words, *where))
    lines = world.cluster.outside(sys.executable, "-m", "tests.cluster.replayed", client.bootstrap)
    verdicts = [json.loads(line) for line in lines.splitlines()]
    replayed = {int(row["window"]): row for row in verdicts if row["job"] == _PAST_JOB}
    world.wrong += (wrong := unlike(committed, replayed))
    if answer["unanswered"] or answer["replanned"] or not answer["incidents"]:
        world.wrong.append(f"the back-test says {answer}")
    counted = f"{len(replayed)} windows, {len(answer['incidents'])} incidents"
    world.tell(f"a back-test of {counted}: {len(wrong)} unlike what was committed")


def unlike(
    committed: Mapping[int, Mapping[str, Any]], replayed: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Return a line for each window of which a back-test says something else than was committed."""
    lines = []
    for window in sorted(committed.keys() | replayed.keys()):
        one, other = committed.get(window), replayed.get(window)
        same = one is not None and other is not None and one["outcome"] == other["outcome"]
        if not same or abs(_p_yes(one) - _p_yes(other)) > _SAME:
            lines.append(f"back-test, window {window}: {one} committed, {other} replayed")
    if len(committed) < _LEAST_WINDOWS:
        lines.append(f"back-test: {len(committed)} windows were committed")
    return lines


def _p_yes(verdict: Mapping[str, Any] | None) -> float:
    return float((verdict or {}).get("p_yes", 0.0))


def _events(world: World, pod: str) -> dict[str, float]:
    """The events that a pod's service has counted since it began."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9090/proxy/metrics"
    families = text_string_to_metric_families(world.cluster.kubectl("get", "--raw", path))
    samples = (sample for family in families for sample in family.samples)
    return {
        sample.labels["event"]: sample.value for sample in samples if sample.name == "lookout_events_total"
    }


def refuse(world: World) -> None:
    """A file that is not there, and one outside the claim, are refused in words."""
    wrong = {"missing": ("nothing.mp4", "nothing.mp4"), "outside": ("../../etc/passwd", "passwd")}
    for name, (file, words) in wrong.items():
        world.apply("Recording", name, spec(file))
        refused = until(
            f"{file} is refused",
            lambda name=name: status(world, f"recording/{name}"),  # type: ignore[misc]
            lambda now: now.get("state") == "refused",
        )
        world.check(refused["reason"], words)
        world.tell(f"{file} is refused: {refused['reason']}")
        world.check(world.kubectl("delete", f"recording/{name}", "--timeout=60s"), "deleted")


def cancel(world: World) -> None:
    """Deleting a resource cancels its job."""
    world.check(world.apply("Recording", "long", spec("room.mp4", partFrames=2, fps=8)), "created")
    job = until(
        "a job begins", lambda: status(world, "recording/long"), lambda now: now.get("state") == "running"
    )["job"]
    world.check(world.kubectl("delete", "recording/long", "--timeout=60s"), "deleted")
    until(
        "a deleted resource's job is cancelled",
        lambda: _states(world, job),
        lambda states: states[-1:] == ["STATE_CANCELLED"],
    )
    rows = [value for key, value in world.client().rows(RECORDINGS.name) if key == job]
    if rows[-1] is not None and not from_json(rows[-1], RecordingJob).cancelled:
        world.wrong.append(f"the job {job} is still asked in {RECORDINGS.name}")
    world.tell(f"{job} was cancelled")


def _states(world: World, job: str) -> list[str]:
    """The states that the fleet said of a job, in order."""
    rows = [value for key, value in world.client().rows(ANSWERS.name) if key == job and value is not None]
    return [RecordingAnswers.State.Name(from_json(value, RecordingAnswers).state) for value in rows]
