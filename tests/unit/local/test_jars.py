"""The locked list of Kafka's jars, and what happens when a file is not the one in the list."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from lookout.local import LocalError, jars
from lookout.local.java import MINIMUM, find_java


def test_the_lock_is_whole() -> None:
    locked = jars.locked_jars()
    names = {jar.artifact for jar in locked}
    assert {"kafka_2.13", "kafka-clients", "scala-library", "log4j-slf4j-impl"} <= names
    assert len(names) == len(locked)
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)


def test_the_class_path_comes_from_the_cache_without_a_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def fetch(jar: jars.Jar, folder: Path, repository: Path) -> None:
        fetched.append(jar.filename)
        (folder / jar.filename).touch()

    monkeypatch.setattr(jars, "_fetch", fetch)
    first = jars.kafka_class_path(tmp_path)
    assert len(fetched) == len(first.split(":")) == len(jars.locked_jars())
    assert jars.kafka_class_path(tmp_path) == first
    assert len(fetched) == len(jars.locked_jars())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(jar: jars.Jar, folder: Path, repository: Path) -> None:
        (folder / jar.filename).touch()
        if jar.artifact == "log4j-core":
            raise LocalError("the line went dead")

    monkeypatch.setattr(jars, "_fetch", fetch)
    with pytest.raises(LocalError, match="dead"):
        jars.kafka_class_path(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_jar_of_the_users_own_repository_is_used_only_if_it_is_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2_REPO", str(tmp_path))
    monkeypatch.setattr("jgo.constants.default_maven_repo", lambda: tmp_path)
    jar = jars.Jar(hashlib.sha256(b"right").hexdigest(), "org.example", "thing", "1.0")
    path = tmp_path / "org" / "example" / "thing" / "1.0" / "thing-1.0.jar"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"wrong")
    assert jars._local_copy(jar) is None
    path.write_bytes(b"right")
    assert jars._local_copy(jar) == path


def test_java_is_new_enough() -> None:
    assert find_java().major >= MINIMUM


def test_a_java_home_that_holds_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookout.local.java._from_wheel", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="JAVA_HOME"):
        find_java()
