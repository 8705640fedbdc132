"""One table of topics."""

from __future__ import annotations

import itertools

from lookout.wire import (
    PIPELINE,
    WATCHES,
    Stage,
    all_topics,
)


def test_the_topic_table_is_one_chain() -> None:
    names = [topic.name for topic in all_topics()]
    assert len(names) == len(set(names))
    order = list(Stage)
    for before, after in itertools.pairwise(order):
        assert PIPELINE[before].outputs == (PIPELINE[after].source,)
    assert WATCHES.config()["cleanup.policy"] == "compact"
    assert all(topic.config()["max.message.bytes"] for topic in all_topics())
