"""The scenario: install, publish, alerts, pods killed at random, uninstall; each step checked."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from lookout.wire import all_topics
from tests.cluster import beyond, brokers, chart, storage, workshop
from tests.cluster.cluster import API, Cluster
from tests.cluster.outside import QUESTIONS, Film, Outcomes, Stranger, await_topics, differences, films
from tests.cluster.tools import CACHE, ToolError, build_all, say

CHART = str(workshop.ROOT / "charts" / "lookout")
RELEASE, NAMESPACE = "lookout", "cameras"
STAGES = ("decode", "prune-encode", "prefill", "alerts")
IMAGES = ("alerts", "decode", "prune-encode", "prefill", "controller", "camera-agent", "tryout")
_PATIENCE_S = 900.0
#: certificates of --all live about six minutes, so that some are replaced while it runs
_SHORT_DAYS = 0.004
_SETTLED_S = 12.0
#: silence after which a camera's last window closes: decode's default, and a longer one for --all
_SILENCE_S, _LONG_SILENCE_S = 30.0, 150.0


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


def run(*, everything: bool, seed: int, keep: bool, build: bool) -> int:
    """Run the scenario; returns the exit code."""
    tell = Progress()
    build_all()
    workshop.build_base()
    if build:
        build_images(IMAGES)
    tell("programs and images are there")
    cluster = Cluster(2 if everything else 1)
    score = Score()
    wrong: list[str] = []
    try:
        if cluster.running:
            tell("a cluster is running and is used")
            cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", check=False)
            cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s")
        else:
            cluster.up()
        tell("importing images")
        names = [image_name(each) for each in IMAGES]
        if everything:
            names += [_tagged_again(each) for each in IMAGES]
        cluster.load_changed(names)
        tell("images are in the nodes")
        wrong = _play(cluster, score, random.Random(seed), tell, everything=everything)
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


def _play(
    cluster: Cluster, score: Score, chance: random.Random, tell: Callable[[str], None], *, everything: bool
) -> list[str]:
    before = objects(cluster)
    options: list[str] = []
    if everything:
        storage.provide(cluster, ["kafka", *(f"broker-{number}" for number in range(brokers.COUNT))])
        before = objects(cluster)
        for name, value in {"size": "5Gi", "className": storage.CLASS}.items():
            options += ["--set", f"tryout.kafka.storage.{name}={value}"]
        options += ["--set", f"grpc.days={_SHORT_DAYS}"]
        options += ["--set", f"decode.settings.silence_s={_LONG_SILENCE_S}"]
    _namespace(cluster)
    wrong = [*chart.check(), *chart.dry_run(cluster, NAMESPACE)]
    install(cluster, tell, *options)
    cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "180s")
    tell("helm test passed")
    stranger = Stranger(cluster, f"{API}:30094")
    await_topics(stranger, [topic.name for topic in all_topics()])
    for watch, question in QUESTIONS.items():
        stranger.ask(watch, question, "*")
    cast = films(CACHE / "films")
    time.sleep(2.0)
    quiet_s = _SETTLED_S + (_LONG_SILENCE_S if everything else _SILENCE_S)
    calm = undisturbed(stranger, cast, score, tell, quiet_s)
    stormy = disturbed(cluster, stranger, cast, calm, chance, tell, quiet_s)
    wrong += differences(calm, "calm-", stormy, "storm-")
    score.expected, score.committed = calm.committed, stormy.committed
    score.doubled = calm.doubled + stormy.doubled
    if everything:
        later = further(cluster, stranger, cast, calm, tell)
        wrong += differences(calm, "calm-", later, "all-")
        score.expected += calm.committed
        score.committed += later.committed
        score.doubled += later.doubled
    wrong += watch_resources(cluster, tell)
    uninstall(cluster, tell)
    if everything:
        later = three_brokers(cluster, cast, calm, tell)
        wrong += differences(calm, "calm-", later, "three-")
        score.expected += calm.committed
        score.committed += later.committed
        score.doubled += later.doubled
        uninstall(cluster, tell)
    left = objects(cluster) - before
    score.left_behind = len(left)
    return [*wrong, *(f"left behind: {each}" for each in sorted(left))]


def uninstall(cluster: Cluster, tell: Callable[[str], None]) -> None:
    """Remove the release and its namespace."""
    tell("uninstalling")
    cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "180s")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")


def three_brokers(
    cluster: Cluster, cast: list[Film], calm: Outcomes, tell: Callable[[str], None]
) -> Outcomes:
    """Install over three brokers with TLS and SCRAM; kill each of them while the films play."""
    tell("three brokers with TLS and SCRAM, a Redis with a password")
    _namespace(cluster)
    values = brokers.start(cluster, NAMESPACE, image_name("tryout"))
    values += ["--set", f"decode.settings.silence_s={_LONG_SILENCE_S}"]
    _helm_install(cluster, [*values, "--set", "topics.partitions=4"])
    tell("installed over three brokers")

    def stranger() -> Stranger:
        return Stranger(cluster, brokers.outside_addresses(cluster, NAMESPACE))

    for watch, question in QUESTIONS.items():
        stranger().ask(watch, question, "*")
    time.sleep(2.0)
    pieces = max(len(film.segments) for film in cast)
    kills = {pieces * (number + 1) // (brokers.COUNT + 1): number for number in range(brokers.COUNT)}
    for index in range(pieces):
        for film in cast:
            if index < len(film.segments):
                stranger().publish(f"three-{film.name}", film.segments[index : index + 1])
        if index in kills:
            tell(brokers.kill_one(cluster, NAMESPACE, kills[index]))
            cluster.kubectl(
                "-n", NAMESPACE, "rollout", "status", f"statefulset/{brokers.NAME}", "--timeout=300s"
            )
        time.sleep(0.3)
    found = _settle(stranger(), "three-", calm.committed, _LONG_SILENCE_S + _SETTLED_S)
    tell(f"three brokers, each killed once: {found.committed} verdicts, {len(found.alerts)} alerts")
    return found


def further(
    cluster: Cluster, stranger: Stranger, cast: list[Film], calm: Outcomes, tell: Callable[[str], None]
) -> Outcomes:
    """Play the films once more among upgrades, scaling, restarts, a drain and certificates that end."""

    def upgrade(options: Sequence[str]) -> None:
        values = ["--reuse-values", *options]
        cluster.helm(
            "upgrade", RELEASE, CHART, "--namespace", NAMESPACE, *values, "--wait", "--timeout", "600s"
        )

    release = beyond.Release(cluster, RELEASE, NAMESPACE, upgrade)
    serial = beyond.certificate_serial(release)
    steps = (
        beyond.scale_out,
        beyond.restart_redis,
        beyond.upgrade_images(f"{tag()}-next"),
        beyond.restart_kafka,
        beyond.drain("node2"),
        beyond.scale_in,
        beyond.roll_back,
    )
    beyond.play(release, stranger, cast, steps, tell)
    found = _settle(stranger, "all-", calm.committed, _LONG_SILENCE_S + _SETTLED_S)
    if beyond.certificate_serial(release) == serial:
        raise ToolError(f"the certificate of {_SHORT_DAYS} days was not replaced")
    tell(f"certificates were replaced meanwhile; {found.committed} verdicts, {len(found.alerts)} alerts")
    return found


def watch_resources(cluster: Cluster, tell: Callable[[str], None]) -> list[str]:
    """Apply resources right and wrong, and leave one behind for uninstalling; returns what went wrong."""
    wrong = []
    refused = {
        "unknown field": {"question": "Is it?", "treshold": 0.5},
        "clearThreshold must not exceed": {"question": "Is it?", "threshold": 0.3, "clearThreshold": 0.6},
        "minYes must not exceed": {"question": "Is it?", "minYes": 3, "ofLast": 2},
    }
    for words, spec in refused.items():
        said = _apply(cluster, "Watch", "wrong", spec)
        if words not in said:
            wrong.append(f"a Watch with {spec} was not refused for {words!r}: {said}")
    for url in ("http://camera/stream", "rtsp://user:secret@camera/stream"):
        said = _apply(cluster, "Camera", "wrong", {"url": url})
        if "url must" not in said:
            wrong.append(f"a Camera at {url} was not refused: {said}")
    said = _apply(cluster, "Watch", "resource", {"question": QUESTIONS["person"], "cameras": ["calm-*"]})
    said += _apply(cluster, "Camera", "resource", {"url": "rtsp://192.0.2.1/stream", "paused": True})
    for kind in ("watch", "camera"):
        accepted = "--for=condition=Accepted"
        said += cluster.kubectl(
            "-n", NAMESPACE, "wait", accepted, f"{kind}/resource", "--timeout=60s", check=False
        )
    if said.count("condition met") != 2:
        wrong.append(f"the resources were not accepted: {said}")
    tell("resources: " + " | ".join(cluster.kubectl("-n", NAMESPACE, "get", "watches,cameras").splitlines()))
    return wrong


def _apply(cluster: Cluster, kind: str, name: str, spec: dict[str, object]) -> str:
    resource = {"apiVersion": "lookout.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return cluster.kubectl("-n", NAMESPACE, "apply", "-f", "-", stdin=json.dumps(resource), check=False)


def install(cluster: Cluster, tell: Callable[[str], None], *options: str) -> None:
    """Install the release as a stranger would, and wait until every pod is ready."""
    tell("helm install")
    _helm_install(cluster, ["--set", f"tryout.kafka.outside.host={API}", *options])
    tell("installed, every pod is ready")


def _namespace(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")


def _helm_install(cluster: Cluster, options: Sequence[str]) -> None:
    values = ["--set", f"image.tag={tag()}", *options]
    cluster.helm("install", RELEASE, CHART, "--namespace", NAMESPACE, *values, "--wait", "--timeout", "600s")


def undisturbed(
    stranger: Stranger, cast: list[Film], score: Score, tell: Callable[[str], None], quiet_s: float
) -> Outcomes:
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
    found = _settle(stranger, "calm-", 1, quiet_s)
    tell(f"undisturbed: {found.committed} verdicts, {len(found.alerts)} alerts")
    return found


def disturbed(  # noqa: PLR0917
    cluster: Cluster,
    stranger: Stranger,
    cast: list[Film],
    calm: Outcomes,
    chance: random.Random,
    tell: Callable[[str], None],
    quiet_s: float,
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
    found = _settle(stranger, "storm-", calm.committed, quiet_s)
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


def _settle(stranger: Stranger, prefix: str, least: int, quiet_s: float) -> Outcomes:
    """Wait until nothing more is committed for a while and at least ``least`` verdicts are there."""
    deadline = time.monotonic() + _PATIENCE_S
    seen, since = -1, time.monotonic()
    while True:
        found = stranger.read(prefix)
        now = time.monotonic()
        if (size := len(found.verdicts) + len(found.alerts)) != seen:
            seen, since = size, now
        quiet = now - since > quiet_s
        if (quiet and found.committed >= least) or now > deadline:
            return found
        time.sleep(2.0)


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
    say(f"removed {workshop.prune():.1f} GB of layers that no image uses")


def _tagged_again(target: str) -> str:
    """Give an image a second tag and another label, as a new release of the same code; returns its name."""
    name = image_name(target, f"{tag()}-next")
    container = workshop.buildah("from", "--pull-never", image_name(target)).strip()
    workshop.buildah("config", "--label", "org.opencontainers.image.version=next", container)
    policy = str(CACHE / "images" / "buildah" / "policy.json")
    workshop.buildah("commit", "--signature-policy", policy, "--rm", "--quiet", container, name)
    return name


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
