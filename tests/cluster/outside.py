"""What a client does from outside the cluster with plain kcat: publish, ask, read what was committed."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookout.video.segments import cut
from lookout.wire import ALERTS, SEGMENTS, VERDICTS, WATCHES
from tests.cluster.cluster import Cluster
from tests.cluster.tools import ToolError
from watchbench.cameras import DEMO, camera
from watchbench.questions import BY_NAME

#: longest time without a broker
_AWAY_S = 300.0
_LIMITS = ("-X", "message.max.bytes=17825792", "-X", "enable.idempotence=true")
QUESTIONS = {"person": BY_NAME["person"].text, "lying": BY_NAME["lying"].text}


@dataclass(frozen=True)
class Film:
    """One rendered camera: its segments as files, in order."""

    name: str
    segments: tuple[Path, ...]


@dataclass(frozen=True)
class Outcomes:
    """What was committed for a set of cameras: verdicts and alerts, decoded."""

    verdicts: Sequence[Mapping[str, Any]]
    alerts: Sequence[Mapping[str, Any]]

    @property
    def doubled(self) -> int:
        """Verdicts and alerts whose id was committed more than once."""
        ids = Counter(each["id"] for each in (*self.verdicts, *self.alerts))
        return sum(count - 1 for count in ids.values())

    @property
    def committed(self) -> int:
        """Different verdicts."""
        return len({each["id"] for each in self.verdicts})

    def answers(self, prefix: str) -> dict[tuple[str, str, int], tuple[str, float]]:
        """Return outcome and p(yes) by film, watch and window; camera ids begin with ``prefix``."""
        found = {}
        for each in self.verdicts:
            key = (each["camera"].removeprefix(prefix), each["watch"], int(each["window"]))
            found[key] = (each["outcome"], float(each.get("p_yes", 0.0)))
        return found


class ExternalClient:
    """Someone with a bootstrap address and kcat."""

    def __init__(self, cluster: Cluster, bootstrap: str, options: Mapping[str, str] | None = None) -> None:
        self._cluster = cluster
        self.bootstrap = bootstrap
        self._options = [
            word for name, value in (options or {}).items() for word in ("-X", f"{name}={value}")
        ]
        self._sent: Counter[str] = Counter()

    def ask(self, watch: str, question: str, cameras: str) -> None:
        """Publish a watch over the cameras of a glob."""
        value = {
            "id": watch,
            "version": 1,
            "question": question,
            "cameras": [cameras],
            "rule": {"threshold": 0.5, "k": 2, "n": 3},
        }
        self._kcat("-P", "-t", WATCHES.name, "-k", watch, stdin=json.dumps(value))

    def publish(self, camera_id: str, segments: Iterable[Path]) -> None:
        """Publish the segments of one camera, in order, each once, also while a lone broker is away.

        kcat ends when no broker answers; what it had delivered until then is seen in the topic.
        """
        left = list(segments)
        self._sent[camera_id] += len(left)
        deadline = time.monotonic() + _AWAY_S
        while left:
            try:
                self._kcat("-P", *_LIMITS, "-t", SEGMENTS.name, "-k", camera_id, *map(str, left))
                return
            except ToolError:
                missing = self._sent[camera_id] - self._arrived(camera_id, deadline)
                left = left[len(left) - missing :]

    def _arrived(self, camera_id: str, deadline: float) -> int:
        """Count a camera's segments in the topic, as soon as the broker answers."""
        while True:
            time.sleep(2.0)
            try:
                keys = self._kcat("-C", "-e", "-q", "-t", SEGMENTS.name, "-f", "%k\n").splitlines()
                return keys.count(camera_id)
            except ToolError:
                if time.monotonic() > deadline:
                    raise

    def read(self, prefix: str) -> Outcomes:
        """Read all committed verdicts and alerts of the cameras whose ids begin with ``prefix``."""
        return Outcomes(self._values(VERDICTS.name, prefix), self._values(ALERTS.name, prefix))

    def write(self, topic: str, key: str, value: str) -> None:
        """Write one record."""
        self._kcat("-P", "-t", topic, "-k", key, stdin=value)

    def rows(self, topic: str) -> list[tuple[str, bytes | None]]:
        """Return key and value of every record of a topic, oldest first."""
        lines = self._kcat("-C", "-e", "-q", "-t", topic, "-f", "%k\t%s\n").splitlines()
        pairs = [line.partition("\t") for line in lines if line]
        return [(key, value.encode() or None) for key, _, value in pairs]

    def topics(self) -> list[str]:
        """Return the names of the topics."""
        return [each["topic"] for each in json.loads(self._kcat("-L", "-J"))["topics"]]

    def _values(self, topic: str, prefix: str) -> list[Mapping[str, Any]]:
        lines = self._kcat(
            "-C", "-e", "-q", "-X", "isolation.level=read_committed", "-t", topic, "-f", "%s\n"
        )
        values = [json.loads(line) for line in lines.splitlines() if line]
        return [value for value in values if str(value.get("camera", "")).startswith(prefix)]

    def _kcat(self, *arguments: str, stdin: str | None = None) -> str:
        command = ["kcat", "-b", self.bootstrap, *self._options, *arguments]
        return self._cluster.outside(*command, stdin=stdin, timeout=300)


def films(folder: Path) -> list[Film]:
    """Render the demo's cameras (or take the ready ones) and cut them into segments at keyframes."""
    made = []
    for name in DEMO:
        rendered = camera(name, folder / "films")
        target = folder / "segments" / name
        target.mkdir(parents=True, exist_ok=True)
        paths = []
        for index, segment in enumerate(cut(rendered.path, target_s=2.0)):
            path = target / f"{index:05d}.ts"
            path.write_bytes(segment.data)
            paths.append(path)
        made.append(Film(name, tuple(paths)))
    return made


def differences(
    undisturbed: Outcomes, undisturbed_prefix: str, disturbed: Outcomes, disturbed_prefix: str
) -> list[str]:
    """Return a line for each window whose outcome is missing, new or of another kind in the disturbed run.

    Answers may differ a little: a window after a takeover is computed whole, others reuse KV. Tests of the
    fleet on one machine compare the answers.
    """
    before, after = undisturbed.answers(undisturbed_prefix), disturbed.answers(disturbed_prefix)
    lines = []
    for key in sorted({*before, *after}):
        one, other = before.get(key), after.get(key)
        if one is None or other is None or one[0] != other[0]:
            lines.append(f"{key[0]} window {key[2]} {key[1]}: {one} undisturbed, {other} disturbed")
    return lines


def await_topics(client: ExternalClient, names: Sequence[str]) -> None:
    """Check that topics exist.

    Raises:
        ToolError: One is missing.
    """
    if missing := sorted(set(names) - set(client.topics())):
        raise ToolError(f"topics are missing: {', '.join(missing)}")
