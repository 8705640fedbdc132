"""Which chain a window belongs to, where watches are asked about windows and about strides."""

from __future__ import annotations

import pytest

from lookout.models.families import load_layout
from lookout.models.windows import Planner, WindowSettings
from lookout.streams.chains import EpochRecords, chain_keys, chain_windows
from lookout.v1.verdicts_pb2 import Verdict
from tests.prefill_world import block_record
from tests.tiny_models import checkpoint

WINDOWS = 12


def verdict(window: int, since: int | None) -> Verdict:
    """An answer of a chain; without `since` one of strides."""
    found = Verdict(window=window, outcome=Verdict.OUTCOME_ANSWERED, basis="strides", stream_start_s=0)
    if since is not None:
        found.basis, found.since_key = "incremental" if since else "key", since
    return found


def epoch(*groups: list[Verdict]) -> EpochRecords:
    blocks = {index: block_record("cam", index) for index in range(WINDOWS)}
    return EpochRecords("cam", 0, blocks, {group[0].window: group for group in groups if group})


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(load_layout(checkpoint("internvl")), WindowSettings(blocks=3, key_every=4))


def test_watches_of_strides_do_not_hide_the_chain(planner: Planner) -> None:
    since = [0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1, 2]
    mixed = epoch(*([verdict(index, None), verdict(index, at)] for index, at in enumerate(since)))
    keys = chain_keys(mixed, planner)
    assert keys == {index: index - at for index, at in enumerate(since)}
    assert [window.since_key for window in chain_windows(mixed)] == since


def test_windows_of_strides_alone_are_cut_at_the_streams_key_strides(planner: Planner) -> None:
    """As windows that no watch asked: whoever asks them of windows makes the chain."""
    strides = epoch(*([verdict(index, None)] for index in range(WINDOWS)))
    keys = chain_keys(strides, planner)
    assert keys == chain_keys(epoch(), planner)
    assert 2 < len(set(keys.values())) < WINDOWS
    assert {window.since_key for window in chain_windows(strides)} == {None}
    assert {window.first for window in chain_windows(strides)} == {0}
