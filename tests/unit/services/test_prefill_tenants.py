"""Quotas of tenants at prefill, and how tenants share a device that is short."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from lookout.fairness import FairShares
from lookout.services.prefill.batcher import Batcher, KeyRoom, choose_windows
from lookout.services.prefill.overload import OverloadPolicy, Standing
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prefill.shares import DeviceShares
from lookout.tenants import Quotas, TenantUsage
from lookout.v1.lineage_pb2 import CAUSE_QUOTA
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import TOKENS
from lookout.worker import Record, load_settings
from tests.prefill_world import block_record
from tests.unit.services.prefill_case import CROWD, FALL, WALL_MS, World


def block(camera: str, index: int, tenant: str) -> TokensRecord:
    record = block_record(camera, index)
    record.labels.tenant = tenant
    return record


class TestQuotas:
    def test_questions_beyond_a_quota_have_their_outcome(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, CROWD, tenant_quotas='{"acme": {"questions": 3}}')
        world.now = WALL_MS / 1000
        found = [world.tell(block("gate", index, "acme")) for index in range(4)]
        outcomes = [[verdict.outcome for verdict in verdicts] for verdicts in found]
        answered, skipped = Verdict.OUTCOME_ANSWERED, Verdict.OUTCOME_SKIPPED
        # Two watches ask each window: the third question is the first one of a window that is still asked.
        assert outcomes == [[answered] * 2, [answered] * 2, [skipped] * 2, [skipped] * 2]
        [first, _] = found[2]
        assert (first.cause, first.tenant) == (CAUSE_QUOTA, "acme")
        assert "tenant 'acme' used its 3 questions about windows in 60 s" in first.reason
        assert [verdict.outcome for verdict in world.tell(block("yard", 0, "globex"))] == [answered] * 2
        world.now += 60
        assert [verdict.outcome for verdict in world.tell(block("gate", 4, "acme"))] == [answered] * 2

    def test_seconds_of_the_device_are_measured(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, tenant_quotas='{"acme": {"device_s": 0.000001}}')
        handler, engine = world.handler, batcher._engine
        shared = Batcher(engine, 4, tenants=handler._shares)
        handler._runner._answers = shared
        try:
            outcomes = [
                world.tell(block(camera, index, tenant))[0].outcome
                for index in range(2)
                for camera, tenant in (("gate", "acme"), ("yard", ""))
            ]
        finally:
            shared._thread.close()  # the engine stays
        answered, skipped = Verdict.OUTCOME_ANSWERED, Verdict.OUTCOME_SKIPPED
        assert outcomes == [answered, answered, skipped, answered]
        assert handler._tenants.totals["default", "device_s"] > 0
        assert set(handler._shares.numbers()) == {"acme", "default"}

    def test_a_quota_of_nothing_answers_nothing(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, tenant_quotas='{"*": {"questions": 0}}')
        assert world.tell(block("gate", 0, ""))[0].cause == CAUSE_QUOTA

    def test_a_window_without_a_picture_is_a_gap_all_the_same(self, batcher: Batcher) -> None:
        world = World(batcher, FALL, tenant_quotas='{"*": {"questions": 0}}')
        [verdict] = world.tell(block_record("gate", 0, empty=True))
        assert verdict.outcome == Verdict.OUTCOME_GAP


class Load:
    """A device that is short, and cameras of tenants: a simulation over prefill's own policy and shares.

    Windows of all cameras come every stride, in one line, as in a partition. The device computes eight at a
    time; what the policy leaves out costs nothing.
    """

    def __init__(self, cameras: dict[str, int], window_s: float, weights: dict[str, float]) -> None:
        self.now = WALL_MS / 1000
        self.settings = load_settings(PrefillSettings, {"LOOKOUT_MODE": "local"})
        self.fair = FairShares(lambda tenant: weights.get(tenant, 1.0), lambda: self.now)
        self.shares = DeviceShares(self.fair, TenantUsage(Quotas(), ()))
        self.policy = OverloadPolicy(self.settings, lambda: self.now)
        self.cameras = [(f"{name}-{n}", name) for name, count in cameras.items() for n in range(count)]
        self.window_s = window_s
        self.answered, self.asked = Counter[str](), Counter[str]()
        self.latest = Counter[str]()

    def run(self, strides: int, stride_s: float = 2.0) -> dict[str, float]:
        """The share of each tenant's windows that are answered, of the second half of the time."""
        line: deque[tuple[float, str]] = deque()
        begin, sent = self.now, 0
        while self.now < begin + strides * stride_s:
            while sent < strides and begin + sent * stride_s <= self.now:
                line.extend((begin + sent * stride_s, tenant) for _, tenant in self.cameras)
                sent += 1
            batch = list[tuple[float, str]]()
            while line and len(batch) < 8:
                at, tenant = line.popleft()
                record = Record(TOKENS.name, 0, 0, "c", b"", (), round(at * 1000))
                late = self.now >= begin + strides * stride_s / 2
                self.asked[tenant] += late
                if self.policy.skips(record, 0, Standing(), lambda t=tenant: self.shares.excess(t)) is None:
                    batch.append((at, tenant))
                    self.answered[tenant] += late
                    self.latest[tenant] = max(self.latest[tenant], self.now - at)  # type: ignore[assignment]
            self.now += max(0.01, self.window_s * len(batch))
            work = Counter(tenant for _, tenant in batch)
            self.fair.charge({tenant: self.window_s * count for tenant, count in work.items()}, len(batch))
        return {tenant: self.answered[tenant] / self.asked[tenant] for tenant in self.asked}


class TestShortDevice:
    @pytest.mark.slow
    def test_nine_hundred_cameras_do_not_starve_three(self) -> None:
        """The device computes half of what comes: the large tenant loses what is missing."""
        load = Load({"acme": 900, "globex": 3}, 2.0 / 450, {})
        answered = load.run(60)
        assert answered["globex"] == 1.0
        assert answered["acme"] == pytest.approx(0.5, abs=0.05)
        assert load.latest["globex"] < 25.0

    @pytest.mark.slow
    def test_equal_weights_give_equal_parts(self) -> None:
        answered = Load({"acme": 300, "globex": 100}, 2.0 / 100, {}).run(120)
        assert 300 * answered["acme"] == pytest.approx(100 * answered["globex"], rel=0.15)

    @pytest.mark.slow
    def test_weights_give_parts(self) -> None:
        answered = Load({"acme": 200, "globex": 200}, 2.0 / 100, {"acme": 3.0}).run(120)
        assert answered["acme"] / answered["globex"] == pytest.approx(3.0, rel=0.2)

    def test_alone_a_tenant_gets_everything(self) -> None:
        """And nothing of it is left out for being alone."""
        assert Load({"acme": 100}, 2.0 / 50, {}).run(60) == {"acme": 1.0}

    def test_a_device_that_is_not_short_leaves_nothing_out(self) -> None:
        assert Load({"acme": 90, "globex": 3}, 2.0 / 100, {}).run(30) == {"acme": 1.0, "globex": 1.0}


def test_the_order_of_shares_keeps_the_rules_of_a_batch() -> None:
    class Plan:
        """What is read of a plan."""

        def __init__(self, stream: str) -> None:
            self.stream, self.parent, self.computed = stream, None, 1

    class Request:
        """What is read of a request."""

        def __init__(self, stream: str) -> None:
            self.plan, self.keep = Plan(stream), True

    waiting = [Request(stream) for stream in ("a/0", "a/0", "b/0", "c/0")]
    assert choose_windows(waiting, 4, KeyRoom(2), [3, 2, 0, 1]) == [3, 2]  # type: ignore[arg-type]
