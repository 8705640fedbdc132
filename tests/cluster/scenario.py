"""The scenario: install, publish, alerts, pods killed at random, uninstall; each step checked."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lookout.wire import all_topics
from tests.cluster import workshop
from tests.cluster.cluster import API, Cluster
from tests.cluster.outside import QUESTIONS, Film, Outcomes, Stranger, await_topics, differences, films
from tests.cluster.tools import CACHE, ToolError, build_all, say

CHART = str(workshop.ROOT / "charts" / "lookout")
RELEASE, NAMESPACE = "lookout", "cameras"
STAGES = ("decode", "prune-encode", "prefill", "alerts")
IMAGES = ("alerts", "decode", "prune-encode", "prefill", "controller", "camera-agent", "tryout")
_PATIENCE_S = 900.0
_SETTLED_S = 12.0


@dataclass
class Score:
    """The last line.

    Attributes:
        alert_s: Seconds from the first segment published to the first alert read outside.
        expected: Outcomes of the undisturbed run, for the disturbed one.
        committed: Outcomes of the disturbed run.
        doubled: Ids committed twice in either run.
        left_behind: Objects that are still there after uninstalling, CRDs aside.
    """

    alert_s: float = 0.0
    expected: int = 0
    committed: int = 0
    doubled: int = 0
    left_behind: int = 0


class Progress:
    """Lines of progress with the seconds since the start."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, line: str) -> None:
        say(f"{time.monotonic() - self._begun:7.1f} s  {line}")


def run(*, everything: bool, seed: int, keep: bool) -> int:
    """Run the scenario; returns the exit code."""
    tell = Progress()
    build_all()
    workshop.build_base()
    build_images(IMAGES)
    tell("programs and images are there")
    cluster = Cluster(2 if everything else 1)
    score = Score()
    wrong: list[str] = []
    try:
        cluster.up()
        tell("importing images")
        cluster.load(workshop.export([image_name(each) for each in IMAGES]))
        tell("images are in the nodes")
        wrong = _play(cluster, score, random.Random(seed), tell)
    except (ToolError, subprocess.TimeoutExpired):
        _describe(cluster)
        raise
    finally:
        if not keep:
            cluster.down()
    for line in wrong[:40]:
        tell(line)
    print(json.dumps(asdict(score)), flush=True)
    clean = score.expected == score.committed > 0 and score.doubled == score.left_behind == 0
    return 0 if clean and not wrong else 1


def _play(cluster: Cluster, score: Score, chance: random.Random, tell: Callable[[str], None]) -> list[str]:
    before = objects(cluster)
    install(cluster, tell)
    stranger = Stranger(cluster, f"{API}:30094")
    await_topics(stranger, [topic.name for topic in all_topics()])
    for watch, question in QUESTIONS.items():
        stranger.ask(watch, question, "*")
    cast = films(CACHE / "films")
    time.sleep(2.0)
    calm = undisturbed(stranger, cast, score, tell)
    stormy = disturbed(cluster, stranger, cast, calm, chance, tell)
    score.expected, score.committed = calm.committed, stormy.committed
    score.doubled = calm.doubled + stormy.doubled
    wrong = differences(calm, "calm-", stormy, "storm-")
    tell("uninstalling")
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
    left = objects(cluster) - before
    score.left_behind = len(left)
    return [*wrong, *(f"left behind: {each}" for each in sorted(left))]


def install(cluster: Cluster, tell: Callable[[str], None], *options: str) -> None:
    """Install the release as a stranger would, and wait until every pod is ready."""
    tell("helm install")
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    values = ["--set", f"tryout.kafka.outside.host={API}", "--set", f"image.tag={tag()}", *options]
    cluster.helm("install", RELEASE, CHART, "--namespace", NAMESPACE, *values, "--wait", "--timeout", "600s")
    tell("installed, every pod is ready")


def undisturbed(stranger: Stranger, cast: list[Film], score: Score, tell: Callable[[str], None]) -> Outcomes:
    """Publish every film under ``calm-`` ids and return what was committed once nothing more comes."""
    begun = time.monotonic()
    for film in cast:
        stranger.publish(f"calm-{film.name}", film.segments)
    tell(f"published {len(cast)} cameras, {sum(len(each.segments) for each in cast)} segments")
    while not (found := stranger.read("calm-")).alerts:
        if time.monotonic() - begun > _PATIENCE_S:
            raise ToolError(f"no alert came within {_PATIENCE_S:.0f} s; {found.committed} verdicts")
        time.sleep(0.5)
    score.alert_s = round(time.monotonic() - begun, 1)
    tell(f"the first alert after {score.alert_s} s")
    found = _settle(stranger, "calm-", 1, lambda: None)
    tell(f"undisturbed: {found.committed} verdicts, {len(found.alerts)} alerts")
    return found


def disturbed(  # noqa: PLR0917
    cluster: Cluster,
    stranger: Stranger,
    cast: list[Film],
    calm: Outcomes,
    chance: random.Random,
    tell: Callable[[str], None],
) -> Outcomes:
    """Publish the films again under ``storm-`` ids, slowly, while pods are killed; return the outcomes."""
    pieces = max(len(film.segments) for film in cast)
    kills = 0
    for index in range(pieces):
        for film in cast:
            if index < len(film.segments):
                stranger.publish(f"storm-{film.name}", film.segments[index : index + 1])
        if index % 4 == 3:
            tell(kill_pod(cluster, chance))
            kills += 1
        time.sleep(chance.uniform(0.2, 1.5))
    found = _settle(stranger, "storm-", calm.committed, lambda: None)
    tell(f"disturbed by {kills} kills: {found.committed} verdicts, {len(found.alerts)} alerts")
    return found


def kill_pod(cluster: Cluster, chance: random.Random, stages: tuple[str, ...] = STAGES) -> str:
    """Kill one pod of the fleet without notice; returns a sentence."""
    stage = chance.choice(stages)
    label = f"app.kubernetes.io/component={stage}"
    pods = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", label, "-o", "name").split()
    if not pods:
        return f"no pod of {stage} is there to kill"
    pod = chance.choice(pods)
    cluster.kubectl(
        "-n", NAMESPACE, "delete", pod, "--grace-period=0", "--force", "--wait=false", check=False
    )
    return f"killed {pod}"


def _settle(stranger: Stranger, prefix: str, least: int, meanwhile: Callable[[], None]) -> Outcomes:
    """Wait until nothing more is committed for a while and at least ``least`` verdicts are there."""
    deadline = time.monotonic() + _PATIENCE_S
    seen, since = -1, time.monotonic()
    while True:
        found = stranger.read(prefix)
        now = time.monotonic()
        if (size := len(found.verdicts) + len(found.alerts)) != seen:
            seen, since = size, now
        quiet = now - since > _quiet_s()
        if (quiet and found.committed >= least) or now > deadline:
            return found
        meanwhile()
        time.sleep(2.0)


def _quiet_s() -> float:
    """A camera's silence closes its last window after `silence_s`, 30 seconds unless set."""
    return 30.0 + _SETTLED_S


def objects(cluster: Cluster) -> set[str]:
    """Return every object by kind, namespace and name, CRDs and what Kubernetes itself writes aside."""
    kinds = set()
    for scope in ("--namespaced=true", "--namespaced=false"):
        kinds |= set(cluster.kubectl("api-resources", "--verbs=list", scope, "-o", "name").split())
    kinds -= {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes", "componentstatuses"}
    kinds -= {
        "customresourcedefinitions.apiextensions.k8s.io",
        "endpoints",
        "apiservices.apiregistration.k8s.io",
    }
    kinds -= {"flowschemas.flowcontrol.apiserver.k8s.io"}
    found = set()
    line = "{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{'\\n'}{end}"
    listed = cluster.kubectl("get", ",".join(sorted(kinds)), "-A", "-o", f"jsonpath={line}", check=False)
    found |= {each for each in listed.split("\n") if each.count("/") == 2}
    return found


def build_images(images: tuple[str, ...], tag_name: str | None = None) -> None:
    """Build the images, with every line of progress shown."""
    environment = {**workshop.environment(), "LOOKOUT_IMAGE_TAG": tag_name or tag()}
    command = ["nice", "-n", "10", sys.executable, str(workshop.ROOT / "docker" / "build.py"), *images]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise ToolError("the images were not built")


def tag() -> str:
    """The tag of the images under test."""
    return os.environ.get("LOOKOUT_IMAGE_TAG") or "test"


def image_name(target: str, tag_name: str | None = None) -> str:
    """The name of an image under test."""
    return f"localhost/lookout-{target}:{tag_name or tag()}"


def _describe(cluster: Cluster) -> None:
    """Print what a person would look at first when something went wrong."""
    show = lambda *arguments: say(cluster.kubectl("-n", NAMESPACE, *arguments, check=False)[-6000:])  # noqa: E731
    show("get", "pods,jobs", "-o", "wide")
    show("get", "events", "--sort-by=.lastTimestamp")
    for stage in (*STAGES, "topics", "tryout-kafka", "controller"):
        say(f"--- {stage}")
        show("logs", "-l", f"app.kubernetes.io/component={stage}", "--tail=25", "--all-containers")
