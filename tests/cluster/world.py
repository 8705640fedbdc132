"""What every step has: a cluster, images, films, a release to install, a count of what was committed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lookout.wire import all_topics
from tests.cluster import workshop
from tests.cluster.cluster import Cluster
from tests.cluster.outside import QUESTIONS, ExternalClient, Film, Outcomes, await_topics, differences, films
from tests.cluster.tools import CACHE, ToolError, say

CHART = workshop.ROOT / "charts" / "lookout"
RELEASE, NAMESPACE = "lookout", "cameras"
STAGES = ("decode", "prune-encode", "prefill", "alerts")
#: components beside the stages, whose logs a failure shows
_BESIDE = (
    "topics",
    "tryout-kafka",
    "controller",
    "camera-agent",
    "recordings-plan",
    "recordings",
    "recordings-reduce",
)
#: the images of every release; a step names those that it needs beside them
IMAGES = ("alerts", "decode", "prune-encode", "prefill", "controller", "tryout")
#: the tag of an image of the same code with another label, which counts as the next release
NEXT = "-next"
#: on namespaces that steps make; no other one is deleted on a cluster that is not ours
LABEL = "lookout.dev/test-cluster=true"
_PATIENCE_S = 900.0
SETTLED_S = 12.0
#: pods end after their release's objects
_DELETED_S = 90.0
#: between two pieces of a film while something happens
_SLOWLY_S = 12.0
#: silence after which a camera's last window closes: decode's default, and a longer one among disturbances
SILENCE_S, LONG_SILENCE_S = 30.0, 120.0


@dataclass
class Score:
    """The last line.

    Attributes:
        alert_s: Seconds from the first segment published to the first alert read outside.
        expected: Outcomes of undisturbed runs, once for each disturbed one.
        committed: Outcomes of disturbed runs.
        doubled: Ids committed twice in any run.
        left_behind: Objects that are still there after uninstalling, CRDs aside.
    """

    alert_s: float = 0.0
    expected: int = 0
    committed: int = 0
    doubled: int = 0
    left_behind: int = 0

    def add(self, other: Score) -> None:
        """Count another step's."""
        self.alert_s = self.alert_s or other.alert_s
        self.expected += other.expected
        self.committed += other.committed
        self.doubled += other.doubled
        self.left_behind += other.left_behind

    @property
    def clean(self) -> bool:
        """Whether nothing is missing, doubled or left."""
        return self.expected == self.committed and self.doubled == self.left_behind == 0


@dataclass
class World:
    """One run of some steps.

    Attributes:
        cluster: Where everything happens.
        tell: Prints a line of progress.
        seed: Of every random choice.
        score: Of the step that runs.
        wrong: What the step that runs found wrong, one line each.
    """

    cluster: Cluster
    tell: Callable[[str], None]
    seed: int
    score: Score = field(default_factory=Score)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    @cached_property
    def cast(self) -> list[Film]:
        """The films, rendered and cut once."""
        return films(CACHE / "films")

    def check(self, said: str, *words: str) -> None:
        """Note as wrong what does not say these words."""
        for each in words:
            if each not in said:
                self.wrong.append(f"{each!r} was expected: {said.strip()[-400:]}")

    # ---- namespaces and releases

    @contextmanager
    def namespace(self, name: str = NAMESPACE) -> Iterator[str]:
        """Make a namespace under pod security `restricted`; afterwards nothing of it may be left."""
        before = objects(self.cluster)
        self.cluster.kubectl("create", "namespace", name)
        self.cluster.kubectl(
            "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted", LABEL
        )
        yield name
        self.cluster.kubectl("delete", "namespace", name, "--timeout=120s")
        places = {"", name, "default", "kube-system"}
        left = {each for each in objects(self.cluster) - before if each.split("/")[1] in places}
        self.score.left_behind += len(left)
        self.wrong += [f"left behind: {each}" for each in sorted(left)]

    @contextmanager
    def release(self, *options: str, name: str = RELEASE, namespace: str = NAMESPACE) -> Iterator[None]:
        """Install the chart in a namespace of its own and uninstall it afterwards."""
        with self.namespace(namespace):
            self.install(*options, name=name, namespace=namespace)
            yield
            self.uninstall(name, namespace)

    def install(
        self,
        *options: str,
        name: str = RELEASE,
        namespace: str = NAMESPACE,
        outside_port: int = 30094,
        chart: Path = CHART,
    ) -> None:
        """Install a chart with its default values, and wait until every pod is ready."""
        self.tell("helm install")
        values = (
            []
            if "tryout.enabled=false" in options
            else ["--set", f"tryout.kafka.outside.host={self.cluster.address}"]
        )
        values += ["--set", f"tryout.kafka.outside.port={outside_port}"] if values else []
        values += ["--set", f"image.prefix={_prefix()}lookout-", "--set", f"image.tag={tag()}", *options]
        timeout = ("--wait", "--timeout", "600s")
        self.cluster.helm("install", name, str(chart), "--namespace", namespace, *values, *timeout)
        self.tell("installed, every pod is ready")

    def upgrade(self, *options: str, name: str = RELEASE, namespace: str = NAMESPACE) -> None:
        """Upgrade the release with some changed values, and wait until every pod is ready."""
        values = ["--reuse-values", *options, "--wait", "--timeout", "600s"]
        self.cluster.helm("upgrade", name, str(CHART), "--namespace", namespace, *values)

    def uninstall(self, name: str = RELEASE, namespace: str = NAMESPACE) -> None:
        """Uninstall a release."""
        self.tell("uninstalling")
        self.cluster.helm("uninstall", name, "--namespace", namespace, "--wait", "--timeout", "180s")
        left = self._left(name, namespace)
        self.score.left_behind += len(left)
        self.wrong += [f"left behind in the namespace: {each}" for each in left]

    def _left(self, name: str, namespace: str) -> list[str]:
        """Return objects of a release that is gone, once what Kubernetes deletes later had its time."""
        deadline = time.monotonic() + _DELETED_S
        while True:
            leases = self.cluster.kubectl("-n", namespace, "get", "leases", "-o", "name").split()
            there = [each.split("/") for each in objects(self.cluster)]
            left = [f"{kind}/{each}" for kind, space, each in there if space == namespace and name in each]
            left += [each for each in leases if RELEASE in each]
            if not left or time.monotonic() > deadline:
                return sorted(left)
            time.sleep(1.0)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl in the release's namespace."""
        return self.cluster.kubectl("-n", NAMESPACE, *arguments, stdin=stdin, check=check)

    def apply(self, kind: str, name: str, spec: dict[str, object]) -> str:
        """Apply a resource of the chart's own kinds; returns what kubectl says, refusals too."""
        resource = {"apiVersion": "lookout.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(resource), check=False)

    # ---- films in, outcomes out

    def client(self, port: int = 30094) -> ExternalClient:
        """Return someone outside with the try-out broker's address."""
        return ExternalClient(self.cluster, f"{self.cluster.address}:{port}")

    def ask(self, client: ExternalClient) -> None:
        """Publish the questions of every camera."""
        await_topics(client, [topic.name for topic in all_topics()])
        for watch, question in QUESTIONS.items():
            client.ask(watch, question, "*")
        time.sleep(2.0)

    def play(
        self,
        client: Callable[[], ExternalClient],
        prefix: str,
        events: Mapping[int, Callable[[], object]] | None = None,
        pause_s: float = 0.3,
    ) -> None:
        """Publish every film piece by piece under ids with a prefix; after some pieces something happens."""
        pieces = max(len(film.segments) for film in self.cast)
        for index in range(pieces):
            for film in self.cast:
                if index < len(film.segments):
                    client().publish(f"{prefix}{film.name}", film.segments[index : index + 1])
            if event := (events or {}).get(index):
                self.tell(str(event()))
            time.sleep(pause_s)

    def play_during(
        self,
        client: Callable[[], ExternalClient],
        prefix: str,
        events: Sequence[Callable[[], object]],
        pause_s: float = _SLOWLY_S,
    ) -> None:
        """Publish every film slowly while one event after the other happens, the rest at once afterwards.

        A camera must not be silent so long that it counts as away, however long an event takes.

        Raises:
            ToolError: An event failed.
        """
        over = threading.Event()
        failed: list[Exception] = []

        def happen() -> None:
            try:
                for event in events:
                    begun = time.monotonic()
                    said = event()
                    self.tell(f"{said} ({time.monotonic() - begun:.0f} s)")
            except Exception as error:
                failed.append(error)
            finally:
                over.set()

        threading.Thread(target=happen, daemon=True).start()
        for index in range(self.pieces):
            for film in self.cast:
                if index < len(film.segments):
                    client().publish(f"{prefix}{film.name}", film.segments[index : index + 1])
            over.wait(pause_s)
        self.tell(f"{prefix}: everything is published")
        if not over.wait(_PATIENCE_S):
            raise ToolError(f"the events are not over {_PATIENCE_S:.0f} s after the last piece")
        if failed:
            raise ToolError(f"an event failed: {failed[0]}") from failed[0]

    @property
    def pieces(self) -> int:
        """How many pieces the longest film has."""
        return max(len(film.segments) for film in self.cast)

    def count(
        self,
        client: ExternalClient,
        prefix: str,
        silence_s: float = SILENCE_S,
        reference: Outcomes | None = None,
    ) -> Outcomes:
        """Wait for the outcomes of a disturbed run, compare them with the undisturbed one, count them."""
        reference = reference or self.reference()
        found = settle(client, prefix, reference.committed, silence_s + SETTLED_S)
        self.tell(f"{prefix}: {found.committed} verdicts, {len(found.alerts)} alerts")
        self.wrong += differences(reference, "undisturbed-", found, prefix)
        self.score.expected += reference.committed
        self.score.committed += found.committed
        self.score.doubled += found.doubled
        return found

    def one_film(self, client: ExternalClient, prefix: str) -> None:
        """Publish the first film only, and compare with what it gave undisturbed."""
        film = self.cast[0]
        client.publish(f"{prefix}{film.name}", film.segments)
        reference = self.reference()
        verdicts = [each for each in reference.verdicts if each["camera"] == f"undisturbed-{film.name}"]
        alerts = [each for each in reference.alerts if each["camera"] == f"undisturbed-{film.name}"]
        self.count(client, prefix, reference=Outcomes(verdicts, alerts))

    def undisturbed(self, client: ExternalClient, silence_s: float = SILENCE_S) -> Outcomes:
        """Publish every film under ``undisturbed-`` ids; keep what was committed once nothing more comes."""
        begun = time.monotonic()
        for film in self.cast:
            client.publish(f"undisturbed-{film.name}", film.segments)
        self.tell(
            f"published {len(self.cast)} cameras, {sum(len(each.segments) for each in self.cast)} segments"
        )
        while not (found := client.read("undisturbed-")).alerts:
            if time.monotonic() - begun > _PATIENCE_S:
                raise ToolError(f"no alert came within {_PATIENCE_S:.0f} s; {found.committed} verdicts")
            time.sleep(0.5)
        self.score.alert_s = round(time.monotonic() - begun, 1)
        self.tell(f"the first alert after {self.score.alert_s} s")
        found = settle(client, "undisturbed-", 1, silence_s + SETTLED_S)
        self.tell(f"undisturbed: {found.committed} verdicts, {len(found.alerts)} alerts")
        self.score.doubled += found.doubled
        _reference(self.cluster).write_text(json.dumps([list(found.verdicts), list(found.alerts)]))
        return found

    def has_reference(self) -> bool:
        """Whether an undisturbed run of these very images is on record."""
        return _reference(self.cluster).exists()

    def reference(self) -> Outcomes:
        """Return the undisturbed run of these very images."""
        return Outcomes(*json.loads(_reference(self.cluster).read_text()))

    def ensure_reference(self, client: ExternalClient, silence_s: float = SILENCE_S) -> None:
        """Play the films undisturbed unless that is on record."""
        if not self.has_reference():
            self.undisturbed(client, silence_s)


class Progress:
    """Lines of progress with the seconds since the start."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, line: str) -> None:
        say(f"{time.monotonic() - self._begun:7.1f} s  {line}")


class Record:
    """What passed with these images and this chart, kept over runs.

    Args:
        path: A JSON file.
        layers: Tells an image from its predecessors.
    """

    def __init__(self, path: Path, layers: Callable[[str], str] = workshop.image_layers) -> None:
        self._path = path
        self._layers = layers

    def passed(self, step: str, images: Sequence[str]) -> Score | None:
        """Return a step's score if it passed with what these images are now."""
        entry = self._all().get(step)
        return (
            Score(**entry["score"])
            if entry and entry["fingerprint"] == fingerprint(images, self._layers)
            else None
        )

    def add(self, step: str, images: Sequence[str], score: Score, seconds: float) -> None:
        """Keep a step's score."""
        entry = {
            "fingerprint": fingerprint(images, self._layers),
            "score": asdict(score),
            "seconds": round(seconds, 1),
        }
        self._path.write_text(json.dumps({**self._all(), step: entry}, indent=1))

    def _all(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text())) if self._path.exists() else {}


def fingerprint(images: Sequence[str], layers: Callable[[str], str] = workshop.image_layers) -> str:
    """Return a digest of images and the chart."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(layers(image_name(image)).encode())
    for path in sorted(CHART.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _reference(cluster: Cluster) -> Path:
    digest = hashlib.sha256()
    for image in STAGES:
        digest.update(cluster.image_layers(image_name(image)).encode())
    return CACHE / f"undisturbed-{digest.hexdigest()[:16]}.json"


def settle(client: ExternalClient, prefix: str, least: int, quiet_s: float) -> Outcomes:
    """Wait until nothing more is committed for a while and at least ``least`` verdicts are there."""
    deadline = time.monotonic() + _PATIENCE_S
    seen, since = -1, time.monotonic()
    while True:
        found = client.read(prefix)
        now = time.monotonic()
        if (size := len(found.verdicts) + len(found.alerts)) != seen:
            seen, since = size, now
        if (now - since > quiet_s and found.committed >= least) or now > deadline:
            return found
        time.sleep(2.0)


def kill_pod(world: World, stages: Sequence[str] = STAGES) -> str:
    """Kill one pod of the fleet without notice; returns a sentence."""
    stage = world.chance.choice(list(stages))
    label = f"app.kubernetes.io/component={stage}"
    pods = world.kubectl("get", "pods", "-l", label, "-o", "name").split()
    if not pods:
        return f"no pod of {stage} is there to kill"
    pod = world.chance.choice(pods)
    world.kubectl("delete", pod, "--grace-period=0", "--force", "--wait=false", check=False)
    return f"killed {pod}"


def objects(cluster: Cluster) -> set[str]:
    """Return every object by kind, namespace and name, CRDs and what Kubernetes itself writes aside.

    One that has an owner is named by it: a pod that is evicted comes back under another name.
    """
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
    fields = "{.metadata.ownerReferences[0].kind} {.metadata.ownerReferences[0].name}/{.metadata.name}"
    line = f"{{range .items[*]}}{{.kind}}/{{.metadata.namespace}}/{fields}{{'\\n'}}{{end}}"
    listed = cluster.kubectl("get", ",".join(sorted(kinds)), "-A", "-o", f"jsonpath={line}", check=False)
    rows = [each.split("/") for each in listed.split("\n") if each.count("/") == 3]
    return {f"{kind}/{space}/{owner.strip() or name}" for kind, space, owner, name in rows}


def build_images(images: Sequence[str] = IMAGES, builder: str = "buildah") -> None:
    """Build the images, with every line of progress shown.

    Args:
        images: Their targets.
        builder: ``buildah``: into a folder of our own; ``docker``: where kind and k3d take them from.

    Raises:
        ToolError: One was not built.
    """
    base = workshop.environment() if builder == "buildah" else {**os.environ, "LOOKOUT_BUILDER": builder}
    environment = {**base, "LOOKOUT_IMAGE_TAG": tag()}
    command = ["nice", "-n", "10", sys.executable, str(workshop.ROOT / "docker" / "build.py"), *images]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise ToolError("the images were not built")


def tagged_again(target: str) -> str:
    """Give an image a second tag and another label, as a new release of the same code; returns its name."""
    name = image_name(target, f"{tag()}{NEXT}")
    layers = workshop.image_layers(image_name(target)).removesuffix("]")
    if workshop.have_image(name) and workshop.image_layers(name).startswith(layers):  # and an empty one
        return name
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
    return f"{_prefix()}lookout-{target}:{tag_name or tag()}"


def _prefix() -> str:
    """In front of the images' names; docker/build.py knows the same variable."""
    return os.environ.get("LOOKOUT_IMAGE_PREFIX") or "localhost/"


def describe(cluster: Cluster) -> None:
    """Print what a person would look at first when something went wrong."""
    for namespace in sorted(set(cluster.kubectl("get", "namespaces", "-o", "name", check=False).split())):
        name = namespace.removeprefix("namespace/")
        if name.startswith(("kube-", "default")):
            continue

        def show(*arguments: str, where: str = name) -> None:
            say(cluster.kubectl("-n", where, *arguments, check=False)[-6000:])

        show("get", "pods,jobs", "-o", "wide")
        show("get", "events", "--sort-by=.lastTimestamp")
        for component in (*STAGES, *_BESIDE):
            say(f"--- {name}: {component}")
            show("logs", "-l", f"app.kubernetes.io/component={component}", "--tail=25", "--all-containers")
