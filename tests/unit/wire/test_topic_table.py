"""One table of topics."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from lookout.wire import (
    PIPELINE,
    RECORDING_FLOWS,
    WATCHES,
    Stage,
    all_topics,
)


def test_the_topic_table_is_one_chain() -> None:
    names = [topic.name for topic in all_topics()]
    assert len(names) == len(set(names))
    order = list(Stage)
    for before, after in itertools.pairwise(order):
        assert PIPELINE[before].outputs[0] == PIPELINE[after].source
    assert WATCHES.config()["cleanup.policy"] == "compact"
    assert all(topic.config()["max.message.bytes"] for topic in all_topics())


def test_a_topic_that_stores_what_producers_compressed_does_not_fit() -> None:
    """Its limit would be of compressed bytes: readers would get any number."""
    for topic in all_topics():
        assert not topic.complaints(topic.config())
        (complaint,) = topic.complaints({**topic.config(), "compression.type": "producer"})
        assert complaint == f"{topic.name} compression.type=producer, must be uncompressed"


def test_the_table_of_rights_has_what_each_service_reads_and_writes() -> None:
    page = (Path(__file__).parents[3] / "docs/kubernetes.md").read_text()
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5:
            rows[cells[0]] = [set(re.findall(r"`([^`]+)`", cell)) for cell in cells[1:]]
    for flow in (*PIPELINE.values(), *RECORDING_FLOWS):
        reads, writes, groups, transactions = rows[flow.name]
        assert {flow.source.name, flow.state.name} <= reads
        outputs = {topic.name for topic in (*flow.outputs, flow.state, flow.dead_letters)}
        assert outputs <= writes
        assert flow.name in groups
        assert transactions == {f"{flow.name}.*"}
