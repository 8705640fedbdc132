"""Names of a canary's topics, groups and keys: it reads what the fleet reads, and writes none of those."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from lookout import wire

_NAMES = """
import json
from lookout import wire
from lookout.runtime.store.labels import camera_entries, stage_keys
from lookout.v1.lineage_pb2 import STAGE_FRAMES, STAGE_TOKENS
stages = [wire.PIPELINE[stage] for stage in (wire.Stage.PRUNE_ENCODE, wire.Stage.PREFILL)]
print(json.dumps({
    "reads": [flow.source.name for flow in stages],
    "writes": [name.name for flow in stages for name in (*flow.outputs, flow.state, flow.dead_letters)],
    "groups": [flow.group for flow in stages],
    "all": [topic.name for topic in wire.all_topics()],
    "shared": [wire.WATCHES.name, wire.ERASURES.name, wire.MASKS.name, wire.SEGMENTS.name],
    "pixels": stage_keys(STAGE_FRAMES),
    "tokens": stage_keys(STAGE_TOKENS),
}))
"""


def names(**environment: str) -> dict[str, list[str]]:
    """The names in a process with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", _NAMES], env={**os.environ, **environment}, capture_output=True, check=True
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_a_canary_shares_what_it_reads_and_nothing_that_it_writes() -> None:
    canary, fleet = names(LOOKOUT_CANARY="0.5", LOOKOUT_PREFIX="site."), names(LOOKOUT_PREFIX="site.")
    assert canary["reads"] == ["site.frames.v1", "site.canary.tokens.v1"]
    assert canary["shared"] == fleet["shared"]
    assert canary["pixels"] == fleet["pixels"] == fleet["tokens"] == "site.lookout:"
    assert canary["tokens"] == "site.lookout:canary:"
    assert canary["groups"] == ["site.canary-prune-encode", "site.canary-prefill"]
    assert sorted(canary["writes"]) == sorted(canary["all"])
    assert not set(canary["writes"]) & set(fleet["all"])


def test_the_fleet_knows_the_canarys_topics() -> None:
    assert [topic.name for topic in wire.canary_topics()] == names(LOOKOUT_CANARY="1")["all"]
    assert wire.CANARY_VERDICTS in wire.canary_topics()
