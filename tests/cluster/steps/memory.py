"""Memory in a cluster: two prefill pods, a recall pod, a handover, a killed holder, an erasure."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from lookout.past.erasures.records import new_erasure, read_log
from lookout.wire import ERASURES, to_json
from tests.cluster.tools import ToolError
from tests.cluster.world import RELEASE, SETTLED_S, SILENCE_S, World, settle

_PATIENCE_S = 300.0
_OPTIONS = (
    *("--set", "prefill.memory.keep=2h"),
    *("--set", "recall.enabled=true"),
)
#: asks recall from within its own pod, with the fleet's certificate
_ASK = (
    "import json,sys\n"
    "from google.protobuf.json_format import MessageToDict\n"
    "from lookout.runtime.net import Channels,GrpcSecurity,load_connections\n"
    "from lookout.v1 import memory_pb2_grpc\n"
    "from lookout.v1.memory_pb2 import AskRequest\n"
    "channel=Channels(load_connections(GrpcSecurity)).open('127.0.0.1:50051')\n"
    "request=AskRequest(question='Is anyone lying on the ground?',cameras=sys.argv[1])\n"
    "for part in memory_pb2_grpc.RecallServiceStub(channel).Ask(request,timeout=240):\n"
    "    if part.WhichOneof('part')=='answer':print(json.dumps(MessageToDict(part.answer)))\n"
)
_END = "import os,signal; os.kill(1, signal.SIGTERM)"


def run(world: World) -> None:
    """What a camera showed is asked before and after a handover and the end of its holder, and erased."""
    with world.release(*_OPTIONS):
        client = world.client()
        world.ask(client)
        film = world.cast[0]
        camera = f"memory-{film.name}"
        half = len(film.segments) // 2
        client.publish(camera, film.segments[:half])
        first = until(lambda: asked(world, camera), "the first half is not remembered")
        world.upgrade("--set", "prefill.replicas=2")
        client.publish(camera, film.segments[half:])
        settle(client, camera, 1, SILENCE_S + SETTLED_S)  # what is open closes with the silence
        whole = until(
            lambda: later(asked(world, camera), _end(first)),
            "the second half is not remembered after a handover",
        )
        if _begin(whole) != _begin(first):
            world.wrong.append(f"a handover lost what was remembered: {first['covered']}, {whole['covered']}")
        world.tell(f"after a handover to two pods: {whole['covered']}")

        pods = f"{RELEASE}-prefill-0", f"{RELEASE}-prefill-1"
        for pod in pods:
            end(world, pod)
        # A chapter that grew answers otherwise once it is sealed: its newest blocks are in clusters then.
        whole = until(lambda: like(asked(world, camera), whole, "covered"), "chapters are not served again")
        for pod in pods:
            end(world, pod)
            until(
                lambda: like(asked(world, camera), whole, "covered", "pYes"),
                f"the answer is another one since {pod} ended",
            )
            world.tell(f"{pod} ended and came back: {whole['covered']}")
        erase(world, camera, whole)


def end(world: World, pod: str) -> None:
    """End a pod's process, and wait until it is started again in its place and ready."""

    def starts() -> str:
        words = "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"
        return world.kubectl(*words, check=False).strip()

    before = starts()
    world.kubectl("exec", pod, "--", "python", "-c", _END, check=False)
    until(lambda: starts() not in ("", before), f"{pod} does not start again")
    world.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=300s")


def erase(world: World, camera: str, answer: dict[str, Any]) -> None:
    """Erase the first half of what an answer covers; everybody confirms, and nothing of it is read."""
    client = world.client()
    begin, end = _begin(answer), (_begin(answer) + _end(answer)) // 2
    request = new_erasure(camera, begin, end, int(time.time() * 1e6), "tests")
    client.write(ERASURES.name, request.id, to_json(request).decode())

    def confirmed() -> bool:
        log = read_log(client.rows(ERASURES.name))
        return len(log.members) >= 5 and request.id in log.erasures and not log.open_at(request.id)

    until(confirmed, "an erasure is not confirmed by everybody")
    left = asked(world, camera)
    if left is not None and _begin(left) < end:
        world.wrong.append(f"erased up to {end}, and still read: {left['covered']}")
    world.tell("an erasure is confirmed by everybody")


def asked(world: World, camera: str) -> dict[str, Any] | None:
    """Recall's answer; None: nothing is remembered."""
    said = world.kubectl("exec", f"deploy/{RELEASE}-recall", "--", "python", "-c", _ASK, camera, check=False)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    answer: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
    return answer


def later(answer: dict[str, Any] | None, end: int) -> dict[str, Any] | None:
    """An answer that covers more than up to a time."""
    return answer if answer is not None and _end(answer) > end + 4_000_000 else None


def like(answer: dict[str, Any] | None, other: dict[str, Any], *parts: str) -> dict[str, Any] | None:
    """An answer without anything missing that equals another one in some parts."""
    if answer is None or answer.get("missing"):
        return None
    return answer if all(answer.get(part) == other.get(part) for part in parts) else None


def until(ask: Callable[[], Any], failure: str) -> Any:
    """The first answer that is one.

    Raises:
        ToolError: None comes in time.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise ToolError(failure)
        time.sleep(2.0)
    return answer


def _begin(answer: dict[str, Any]) -> int:
    return min(int(span["beginUs"]) for span in answer["covered"])


def _end(answer: dict[str, Any]) -> int:
    return max(int(span["endUs"]) for span in answer["covered"])
