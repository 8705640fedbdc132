"""How the chart's topics are configured."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource

from lookout.services.controller import topics
from lookout.services.controller.topics import FAILED, MISCONFIGURED, Wishes, configuration
from lookout.wire import SEGMENTS, WATCHES, all_topics


def test_new_topics_follow_the_table_and_the_owner() -> None:
    assert configuration(SEGMENTS, Wishes(1, 1, {SEGMENTS.name: 2.0}))["retention.ms"] == "7200000"
    assert "min.insync.replicas" not in configuration(SEGMENTS, Wishes(1, 1))
    assert configuration(SEGMENTS, Wishes(1, 3))["min.insync.replicas"] == "2"
    with pytest.raises(Exception, match="compacted"):
        configuration(WATCHES, Wishes(1, 1, {WATCHES.name: 2.0}))


def test_topics_can_ask_for_tiered_storage() -> None:
    settings = configuration(SEGMENTS, Wishes(1, 1, {SEGMENTS.name: 720.0}, {SEGMENTS.name: 6.0}))
    assert (settings["remote.storage.enable"], settings["local.retention.ms"]) == ("true", "21600000")
    assert settings["retention.ms"] == str(720 * 3_600_000)
    assert "remote.storage.enable" not in configuration(SEGMENTS, Wishes(1, 1, {SEGMENTS.name: 720.0}))
    with pytest.raises(Exception, match="compacted, so it cannot have tiered storage"):
        configuration(WATCHES, Wishes(1, 1, {}, {WATCHES.name: 6.0}))


def test_what_trying_again_may_cure_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is not tried again with code 2."""
    monkeypatch.setenv("LOOKOUT_MODE", "local")
    monkeypatch.setenv("LOOKOUT_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr(topics, "_CALL_S", 0.1)
    options = ["--partitions=1", "--replication=1", "--wait-s=0"]
    assert topics.main(options) == FAILED
    assert "Kafka does not answer" in capsys.readouterr().err
    assert topics.main([*options, "--retention-hours=verdict=5"]) == MISCONFIGURED
    assert "unknown topic verdict" in capsys.readouterr().err
    assert topics.main([*options, "--tiered-local-hours=verdict=5"]) == MISCONFIGURED
    assert "--tiered-local-hours: unknown topic verdict" in capsys.readouterr().err


def test_what_the_job_waits_for_is_said_while_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """helm gives up before the job does, and shows what was said until then."""
    monkeypatch.setenv("LOOKOUT_MODE", "local")
    monkeypatch.setenv("LOOKOUT_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr(topics, "_CALL_S", 0.1)
    monkeypatch.setattr(topics, "_PAUSE_S", 0.05)
    assert topics.main(["--partitions=1", "--replication=1", "--wait-s=0.5"]) == FAILED
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("lookout topics: 127.0.0.1:1: Kafka does not answer: ")
    assert first.endswith("; trying again for up to 0.5 s")
    assert last.startswith("lookout topics: 127.0.0.1:1: Kafka does not answer: ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('{"compression.type": "snapy"}', "snapy"),
        ('{"socket.nagle.disabled": "true"}', "socket.nagle.disabled"),
    ],
)
def test_options_that_kafkas_client_does_not_know_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: str, words: str
) -> None:
    monkeypatch.setenv("LOOKOUT_MODE", "local")
    monkeypatch.setenv("LOOKOUT_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("LOOKOUT_KAFKA_OPTIONS", options)
    assert topics.main(["--partitions=1", "--replication=1", "--wait-s=0"]) == MISCONFIGURED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lookout topics: LOOKOUT_KAFKA_OPTIONS: ")
    assert words in line


class FakeAdmin:
    """A fake of Kafka's admin client, whose topics have the settings of the table."""

    def describe_configs(
        self, resources: list[ConfigResource], **_: float
    ) -> dict[ConfigResource, Future[Any]]:
        by_name = {topic.name: topic for topic in all_topics()}
        answers = {}
        for resource in resources:
            answers[resource] = Future[Any]()
            settings = by_name[resource.name].config()
            answers[resource].set_result(
                {key: SimpleNamespace(value=value) for key, value in settings.items()}
            )
        return answers


def partitions(*copies: int) -> Any:
    """A fake of a topic's metadata: so many copies of each partition."""
    numbered = {number: SimpleNamespace(replicas=list(range(count))) for number, count in enumerate(copies)}
    return SimpleNamespace(partitions=numbered)


def test_the_partition_with_the_fewest_copies_counts() -> None:
    existing = {SEGMENTS.name: partitions(3, 2), WATCHES.name: partitions(3)}
    found = topics._problems(FakeAdmin(), existing, Wishes(2, 3))  # type: ignore[arg-type]
    assert [problem.split(":")[0] for problem in found] == [
        f"{SEGMENTS.name} has 2 copies, but topics.replication is 3"
    ]
    assert topics._problems(FakeAdmin(), existing, Wishes(2, 2)) == []  # type: ignore[arg-type]


def test_the_chart_does_not_try_again_what_is_in_vain() -> None:
    job = Path(__file__).parents[3] / "charts/lookout/templates/topics.yaml"
    assert f"operator: In, values: [{MISCONFIGURED}]" in job.read_text()
