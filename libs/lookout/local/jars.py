"""Fetches Apache Kafka's jars once by their Maven coordinates, checks them against a list, and keeps them in
the user's cache.

`kafka.lock` lists every jar with its SHA-256, so versions are not resolved at run time and no other code
runs. `python -m lookout.local.jars` resolves the coordinates again and prints a new list.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from filelock import FileLock
from tenacity import (
    RetryError,
    retry,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential_jitter,
)

from lookout.local.addresses import cache_folder
from lookout.local.processes import LocalError
from lookout.text import visible

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"

_PARALLEL = 8
_WAIT_FOR_OTHERS_S = 900.0


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the list: Maven coordinates and the digest of their file."""

    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def maven_path(self) -> Path:
        return Path(*self.group.split("."), self.artifact, self.version, self.filename)


def locked_jars() -> list[Jar]:
    """Return the committed list, in the order of the class path."""
    lines = files("lookout.local").joinpath("kafka.lock").read_text().split("\n")
    return [
        Jar(digest, *coordinates.split(":")) for digest, coordinates in map(str.split, filter(None, lines))
    ]


def kafka_class_path(cache: Path | None = None) -> str:
    """Return the class path of a Kafka broker; download the jars into the cache if they are missing.

    If two processes need the jars at the same time, a file lock lets one fetch them while the other waits.
    The folder appears only once every digest matches, so an interrupted fetch leaves nothing behind.

    Raises:
        LocalError: A jar could not be fetched, or its digest differs from the list.
    """
    # The folder's name contains the list's digest, so each list has its own folder, and older releases keep
    # theirs.
    jars = locked_jars()
    cache = cache or cache_folder()
    home = cache / f"kafka-{_digest_of(jars)}"
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "kafka.filelock", timeout=_WAIT_FOR_OTHERS_S):
            if not home.is_dir():
                _fetch_all(jars, home)
    return ":".join(str(home / jar.filename) for jar in jars)


def _digest_of(jars: list[Jar]) -> str:
    return hashlib.sha256(repr(jars).encode()).hexdigest()[:16]


def _fetch_all(jars: list[Jar], home: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=home.parent) as scratch:
        folder = Path(scratch) / "jars"
        folder.mkdir()
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for future in [pool.submit(_fetch, jar, folder, Path(scratch) / "maven") for jar in jars]:
                future.result()
        # Rename atomically within one file system, so that the folder is complete or absent.
        folder.rename(home)


def _fetch(jar: Jar, folder: Path, repository: Path) -> None:
    try:
        source = _local_copy(jar) or _download(jar, repository)
    except RetryError as error:
        reason = error.last_attempt.exception()
        raise LocalError(
            f"cannot fetch {jar.group}:{jar.artifact}:{jar.version} for the local Kafka: {reason}. "
            "Check the network and proxy settings, or give a running Kafka's address instead"
        ) from reason
    shutil.copy(source, folder / jar.filename)


def _local_copy(jar: Jar) -> Path | None:
    """Return the jar from this user's Maven repository if its digest matches; else None."""
    from jgo.constants import default_maven_repo

    candidate = Path(default_maven_repo()) / jar.maven_path
    return candidate if candidate.is_file() and _sha256(candidate) == jar.sha256 else None


@retry(
    stop=stop_after_attempt(4),
    wait=wait_exponential_jitter(multiplier=0.5, max=8.0),
    retry=retry_if_not_exception_type(LocalError),
)
def _download(jar: Jar, repository: Path) -> Path:
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    # jgo writes in place, so remove what an earlier attempt left behind.
    (repository / jar.maven_path).unlink(missing_ok=True)
    context = MavenContext(repo_cache=repository, timeout=60)
    context.remote_repos.update(GlobalSettings.load().repositories)
    path = Path(context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())
    if (digest := _sha256(path)) != jar.sha256:
        raise LocalError(
            f"{jar.filename} has SHA-256 {digest}, but the committed list has {jar.sha256}, so it is not "
            "used. If Kafka was updated on purpose, write a new list with `python -m lookout.local.jars`"
        )
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve() -> list[Jar]:
    """Resolve the coordinates again and return the jars; used to write the list, never at run time."""
    from jgo.maven import MavenContext

    with tempfile.TemporaryDirectory() as scratch:
        context = MavenContext(repo_cache=Path(scratch), timeout=60)
        direct, reached = context.resolver.resolve([context.create_dependency(KAFKA)])
        artifacts = [jar.artifact for jar in direct]
        artifacts += [jar.artifact for jar in reached if jar.scope in ("compile", "runtime")]
        # Added without resolution, because a second root would change the version of kafka-clients.
        group, name, version = LOGGING.split(":")
        artifacts.append(context.project(group, name).at_version(version).artifact())
        jars = [Jar(_sha256(Path(a.resolve())), a.groupId, a.artifactId, a.version) for a in artifacts]
    return sorted(jars, key=lambda jar: (jar.group, jar.artifact))


if __name__ == "__main__":
    for jar in resolve():
        print(visible(f"{jar.sha256}  {jar.group}:{jar.artifact}:{jar.version}"))
