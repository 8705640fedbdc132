"""The gateway as the chart installs it: sign-in over `kubectl port-forward`, incidents, pictures, find."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.outside import QUESTIONS
from tests.cluster.steps.policies import enforced
from tests.cluster.steps.watches import until
from tests.cluster.tools import ToolError
from tests.cluster.world import RELEASE, SETTLED_S, SILENCE_S, World, settle

_GATEWAY = f"deployment/{RELEASE}-gateway"
#: recall ranks what prefill remembers; find needs both
OPTIONS = (
    *("--set", "gateway.enabled=true"),
    *("--set", "prefill.memory.keep=2h"),
    *("--set", "recall.enabled=true"),
    *("--set", f"gateway.settings.recall={RELEASE}-recall:50051"),
)


def run(world: World) -> None:
    """A moment is found; under enforcement an incident is listed with its picture; the pod is killed."""
    with world.release(*OPTIONS):
        client = world.client()
        world.ask(client)
        film = world.cast[0]
        camera = f"seen-{film.name}"
        client.publish(camera, film.segments)
        settle(client, camera, 1, SILENCE_S + SETTLED_S)
        with signed_in(world) as get:
            _find(world, get, camera)
            with enforced(world):
                incidents = until("an incident is listed", lambda: _incidents(get), bool)
                world.tell(f"{len(incidents)} incidents are listed")
                _picture(world, get, incidents[0])
        pod = ("pod", "-l", "app.kubernetes.io/component=gateway")
        world.kubectl("delete", *pod, "--grace-period=0", "--force")
        world.kubectl("rollout", "status", _GATEWAY, "--timeout=180s")
        with signed_in(world) as get:
            until("incidents come back from Kafka", lambda: _incidents(get), lambda found: found == incidents)
        world.tell("the pod was killed; its successor lists the same incidents")


@contextmanager
def signed_in(world: World) -> Iterator[Callable[[str], bytes]]:
    """Sign in as `helm status` says, and yield what gets a path of the API."""
    secret = world.kubectl("exec", _GATEWAY, "--", "cat", "/tmp/sign-in/secret").strip()
    with forwarded(world, _GATEWAY, 8080) as url, tempfile.TemporaryDirectory() as folder:
        cookies = Path(folder) / "cookies"
        body = Path(folder) / "body"

        def get(path: str, expected: str = "200") -> bytes:
            command = ("curl", "-sS", "--max-time", "240", "-b", str(cookies), "-c", str(cookies))
            status = world.cluster.outside(*command, "-o", str(body), "-w", "%{http_code}", url + path)
            if status != expected:
                raise ToolError(f"GET {path}: {status}, {body.read_text(errors='replace')[:300]}")
            return body.read_bytes()

        get("/v1/incidents", "401")
        get(f"/sign-in/{secret}", "303")
        yield get


@contextmanager
def forwarded(world: World, target: str, port: int) -> Iterator[str]:
    """Run `kubectl port-forward`; yields the URL of its own port.

    Raises:
        ToolError: It did not begin.
    """
    command = [*world.cluster.prefix, *world.cluster.program("kubectl"), "-n", "cameras"]
    with subprocess.Popen(
        [*command, "port-forward", target, f":{port}"],
        env=world.cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "Forwarding from" not in line:
                raise ToolError(f"kubectl port-forward {target}: {line}")
            yield f"http://{line.split()[2]}"
        finally:
            process.terminate()


def _incidents(get: Callable[[str], bytes]) -> list[str]:
    found = json.loads(get("/v1/incidents")).get("incidents", [])
    return sorted(incident["id"] for incident in found)


def _picture(world: World, get: Callable[[str], bytes], incident: str) -> None:
    begun = time.monotonic()
    picture = get(f"/v1/incidents/{incident}/picture.jpg")
    if not picture.startswith(b"\xff\xd8\xff"):
        world.wrong.append(f"the picture of {incident} is no JPEG: {picture[:40]!r}")
    world.tell(f"a picture of {len(picture)} bytes after {time.monotonic() - begun:.1f} s")


def _find(world: World, get: Callable[[str], bytes], camera: str) -> None:
    question = QUESTIONS["person"].replace(" ", "%20")
    text = get(f"/v1/find?camera={camera}&question={question}").decode()
    events = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.strip().split("\n\n")]
    hits = [event for event in events if event.get("event") == "hit"]
    if not hits or events[-1].get("event") != "summary":
        world.wrong.append(f"find answers without hits or summary: {text[-400:]}")
    world.tell(f"find: {len(hits)} hits; {events[-1].get('data', '')[:200]}")
