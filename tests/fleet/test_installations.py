"""Two installations on one Kafka and one Redis: apart with prefixes, refused without."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from lookout.cli.connect import make_producer
from lookout.services.controller.topics import MISCONFIGURED
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import to_json
from tests.clock import at
from tests.eventually import eventually
from tests.fleet.test_alerts_service import service

pytestmark = [pytest.mark.fleet, pytest.mark.long]


def make_topics(bootstrap: str, prefix: str) -> list[str]:
    """The topics' job of the chart; what it says that it made."""
    done = topics_job(bootstrap, prefix)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("created ") for line in done.stdout.splitlines()]


def topics_job(bootstrap: str, prefix: str, copies: int = 1) -> subprocess.CompletedProcess[str]:
    """The topics' job of the chart, for so many copies of a partition."""
    options = ("--partitions=1", f"--replication={copies}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOOKOUT_")}
    return subprocess.run(
        [sys.executable, "-m", "lookout.services.controller.topics", *options],
        env={
            **environment,
            "LOOKOUT_MODE": "local",
            "LOOKOUT_BOOTSTRAP": bootstrap,
            "LOOKOUT_NAMESPACE": "cameras",
            "LOOKOUT_PREFIX": prefix,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_topics_with_fewer_copies_than_wanted_are_refused_by_name(kafka: str, prefix: str) -> None:
    names = make_topics(kafka, prefix)
    done = topics_job(kafka, prefix, copies=3)
    assert done.returncode == MISCONFIGURED
    assert done.stdout == ""
    advice = "add copies with kafka-reassign-partitions.sh, or lower topics.replication"
    assert sorted(done.stderr.splitlines()) == sorted(
        f"lookout topics: {name} has 1 copies, but topics.replication is 3: {advice}" for name in names
    )
    assert topics_job(kafka, prefix).returncode == 0


def verdict(camera: str) -> bytes:
    """An answer above the threshold."""
    return to_json(
        Verdict(
            camera=camera,
            epoch=1,
            watch="fall",
            watch_version=1,
            question="Is anyone lying on the ground?",
            outcome=Verdict.OUTCOME_ANSWERED,
            p_yes=0.9,
            start=at(1000),
            end=at(3000),
        )
    )


def cameras_alerted(bootstrap: str, topic: str) -> set[str]:
    """Cameras with an alert."""
    with Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{topic}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    ) as consumer:
        consumer.subscribe([topic])
        cameras: set[str] = set()
        while (message := consumer.poll(20.0)) is not None and message.error() is None:
            cameras.add((message.key() or b"").decode())
    return cameras


def test_two_installations_on_one_kafka(kafka: str, redis_url: str, prefix: str, tmp_path: Path) -> None:
    prefixes = [f"{prefix}{site}." for site in ("a", "b")]
    for site in prefixes:
        names = make_topics(kafka, site)
        assert names
        assert all(name.startswith(site) for name in names)
    quick = {"session_timeout_s": "4"}
    with ExitStack() as running:
        sites = [
            running.enter_context(
                service(kafka, redis_url, tmp_path / "alerts.log", prefix=site, release=site, **quick)
            )
            for site in prefixes
        ]
        producer = make_producer(kafka)
        for site, camera in zip(prefixes, ("gate", "yard"), strict=True):
            producer.produce(f"{site}verdicts.v1", verdict(camera), camera, partition=0)
        assert producer.flush(30) == 0
        for site, camera in zip(prefixes, ("gate", "yard"), strict=True):
            alerted = eventually(lambda site=site: cameras_alerted(kafka, f"{site}alerts.v1"))
            assert alerted == {camera}
        # Both are called alerts-0, and neither fenced the other.
        assert [process.poll() for process in sites] == [None, None]
        groups = [f"{site}alerts" for site in prefixes]
        admin = AdminClient({"bootstrap.servers": kafka})
        described = admin.describe_consumer_groups(groups, request_timeout=60.0)
        assert [len(described[group].result(60).members) for group in groups] == [1, 1]

        log = tmp_path / "intruder.log"
        with service(
            kafka, redis_url, log, prefix=prefixes[0], release="other", instance="alerts-1", **quick
        ) as intruder:
            assert intruder.wait(240) == 2
        assert "A second installation needs a different LOOKOUT_PREFIX" in log.read_text()
        assert sites[0].poll() is None
