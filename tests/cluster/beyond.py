"""What ``--all`` adds: the films once more while the cluster is drained, upgraded, scaled and restarted."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cryptography import x509

from tests.cluster.cluster import Cluster
from tests.cluster.outside import Film, Stranger

Tell = Callable[[str], None]
_PAUSE_S = 0.3


@dataclass(frozen=True)
class Release:
    """An installed release, as the steps need it."""

    cluster: Cluster
    name: str
    namespace: str
    upgrade: Callable[[Sequence[str]], None]

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl in the release's namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=check)

    def wait(self, stage: str) -> None:
        """Wait until every pod of a stage is ready."""
        self.kubectl("rollout", "status", f"statefulset/{self.name}-{stage}", "--timeout=300s")


def scale_out(release: Release) -> str:
    """Prefill from one pod to three."""
    release.kubectl("scale", f"statefulset/{release.name}-prefill", "--replicas=3")
    release.wait("prefill")
    return "scaled prefill to 3"


def scale_in(release: Release) -> str:
    """And back."""
    release.kubectl("scale", f"statefulset/{release.name}-prefill", "--replicas=1")
    return "scaled prefill back to 1"


def restart_kafka(release: Release) -> str:
    """The lone broker's pod dies without notice; its data stays on its volume."""
    pod = f"pod/{release.name}-tryout-kafka-0"
    release.kubectl("delete", pod, "--grace-period=0", "--force", check=False)
    time.sleep(2.0)
    release.wait("tryout-kafka")
    return "killed Kafka; it is back"


def restart_redis(release: Release) -> str:
    """Redis comes back empty."""
    release.kubectl("delete", f"pod/{release.name}-tryout-redis-0")
    release.wait("tryout-redis")
    return "restarted Redis"


def upgrade_images(tag: str) -> Callable[[Release], str]:
    """Return a step that rolls every pod to other images."""

    def step(release: Release) -> str:
        release.upgrade(["--set", f"image.tag={tag}"])
        return f"upgraded to images {tag}"

    return step


def roll_back(release: Release) -> str:
    """Back to the revision before."""
    release.cluster.helm(
        "rollback", release.name, "--namespace", release.namespace, "--wait", "--timeout", "600s"
    )
    return "rolled back"


def drain(node: str) -> Callable[[Release], str]:
    """Return a step that empties a node and lets it back in."""

    def step(release: Release) -> str:
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
        release.cluster.kubectl("drain", node, *options)
        time.sleep(5.0)
        release.cluster.kubectl("uncordon", node)
        return f"drained {node}"

    return step


def certificate_serial(release: Release) -> int:
    """Return the serial number of the fleet's certificate."""
    path = "jsonpath={.data.tls\\.crt}"
    text = release.kubectl("get", "secret", f"{release.name}-grpc", "-o", path)
    return x509.load_pem_x509_certificate(base64.b64decode(text)).serial_number


def play(
    release: Release,
    stranger: Stranger,
    cast: Sequence[Film],
    steps: Sequence[Callable[[Release], str]],
    tell: Tell,
) -> None:
    """Publish the films under ``all-`` ids; after every few segments comes a step."""
    pieces = max(len(film.segments) for film in cast)
    every = max(1, pieces // (len(steps) + 1))
    left = list(steps)
    for index in range(pieces):
        for film in cast:
            if index < len(film.segments):
                stranger.publish(f"all-{film.name}", film.segments[index : index + 1])
        if left and index % every == every - 1:
            tell(left.pop(0)(release))
        time.sleep(_PAUSE_S)
    for step in left:
        tell(step(release))
