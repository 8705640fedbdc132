"""Names of installations that share a Kafka: the environment of the process decides them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lookout.wire import all_topics, prefix_fault

NAMES = """
import json
from lookout.runtime.store.labels import camera_entries
from lookout.wire import PIPELINE, all_topics, message_kind
flows = PIPELINE.values()
print(json.dumps({
    "topics": [topic.name for topic in all_topics()],
    "kinds": sum(message_kind(topic.name) is not None for topic in all_topics()),
    "groups": [flow.group for flow in flows],
    "key": camera_entries("gate"),
}))
"""


def names(prefix: str) -> dict[str, object]:
    """The names that a process with this prefix uses."""
    environment = {**os.environ, "LOOKOUT_PREFIX": prefix}
    done = subprocess.run([sys.executable, "-c", NAMES], env=environment, capture_output=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.slow
def test_every_shared_name_begins_with_the_prefix() -> None:
    bare, apart = names(""), names("site-a.")
    assert bare["topics"] == [topic.name for topic in all_topics()]
    for kind in ("topics", "groups"):
        assert apart[kind] == [f"site-a.{name}" for name in bare[kind]]  # type: ignore[attr-defined]
    assert apart["key"] == f"site-a.{bare['key']}" == "site-a.lookout:{gate}:"
    assert apart["kinds"] == bare["kinds"]  # messages are known by the longer names too


@pytest.mark.parametrize("prefix", ["", "a.", "site-a.", "site.b-", f"{'x' * 39}."])
def test_prefixes_that_kafka_and_redis_take(prefix: str) -> None:
    assert prefix_fault(prefix) is None


@pytest.mark.parametrize("prefix", ["site", ".", "-a.", "Site.", "a b.", "a{b}.", "a:", f"{'x' * 40}."])
def test_other_prefixes_are_refused(prefix: str) -> None:
    assert (prefix_fault(prefix) or "").startswith("must have at most 40 ")
