"""Records of a search that came long after what they are about, on a real broker."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from lookout.local import KafkaServer, create_topics
from lookout.models import TINY
from lookout.models.families.layout import load_layout
from lookout.models.windows import Planner
from lookout.past.find.records import LAG_MS, KafkaRecords
from lookout.runtime.worker import load_settings
from lookout.services.recall.settings import RecallSettings
from lookout.streams.chains import windows_of
from lookout.wire import TOKENS
from tests.prefill_world import STRIDE_US, stream

pytestmark = [pytest.mark.fleet, pytest.mark.long]
MINUTE_MS = 60_000
BLOCKS = 12
LENGTH_US = BLOCKS * STRIDE_US


def test_windows_are_found_however_late_their_records_came(broker: KafkaServer) -> None:
    """A recording published in one go, a fleet that lags half an hour, and one that lags too long.

    All are in the partition that the topic had before others were added; "quick" would be put there today.
    """
    create_topics(broker.bootstrap, 3)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    lags_ms = {
        "quick": 1000,
        "soon": 1000,
        "clip": 3 * MINUTE_MS,
        "slow": 30 * MINUTE_MS,
        "lost": LAG_MS + 10 * MINUTE_MS,
    }
    now_ms = round(time.time() * 1000)
    for camera, lag_ms in lags_ms.items():
        for record in stream(camera, BLOCKS):
            record.wall_offset_us = 1000 * (now_ms - lag_ms) - LENGTH_US
            producer.produce(TOKENS.name, record.SerializeToString(), camera, partition=0)
    assert producer.flush(30.0) == 0
    settings = load_settings(
        RecallSettings, {}, mode="local", instance="recall-0", model_dir=TINY, bootstrap=broker.bootstrap
    )
    planner = Planner(load_layout(TINY), windows_of(settings))
    with KafkaRecords(settings, planner) as records:
        for camera, lag_ms in lags_ms.items():
            begin_ms = now_ms - lag_ms - 10_000
            for _ in range(2):  # the second time the lag is known
                epochs = records.near(camera, begin_ms, begin_ms + 4000)
                assert [epoch.camera for epoch in epochs] == ([camera] if camera != "lost" else [])
                assert camera != "quick" or len(records._logs) == 1  # no other partition is read
            ends = [epoch.end_ms(index) for epoch in epochs for index in epoch.blocks]
            assert camera == "lost" or any(begin_ms <= end < begin_ms + 4000 for end in ends)
