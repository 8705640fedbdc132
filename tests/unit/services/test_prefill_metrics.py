"""Seconds of devices by tenant, camera and watch: of a bounded number of names."""

from __future__ import annotations

from lookout.services.prefill.metrics import REST, DeviceSeconds
from lookout.v1.verdicts_pb2 import Verdict
from lookout.wire import to_json


def verdict(camera: str, watch: str = "fall", tenant: str = "", device_us: int = 500_000) -> bytes:
    message = Verdict(camera=camera, watch=watch, tenant=tenant, outcome=Verdict.OUTCOME_ANSWERED)
    message.cost.device_us = device_us
    return to_json(message)


def shown(seconds: DeviceSeconds) -> dict[tuple[str, ...], float]:
    (family,) = seconds.numbers()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def test_seconds_add_up_by_tenant_camera_and_watch() -> None:
    seconds = DeviceSeconds()
    seconds.add([verdict("gate"), verdict("gate"), verdict("gate", "crowd"), verdict("yard", tenant="north")])
    assert shown(seconds) == {
        ("default", "gate", "fall"): 1.0,
        ("default", "gate", "crowd"): 0.5,
        ("north", "yard", "fall"): 0.5,
        (REST,) * 3: 0.0,
    }


def test_names_are_bounded_and_no_second_is_lost() -> None:
    seconds = DeviceSeconds(counted=2)
    seconds.add(verdict(f"cam-{number}") for number in range(5))
    seconds.add([verdict("cam-1")])
    found = shown(seconds)
    assert found[REST, REST, REST] == 1.5
    assert found["default", "cam-1", "fall"] == 1.0
    assert len(found) == 3
    seconds.forget("cam-0")  # makes room
    seconds.add([verdict("cam-9")])
    assert ("default", "cam-9", "fall") in shown(seconds)


def test_verdicts_without_cost_and_deletions_have_no_series() -> None:
    seconds = DeviceSeconds()
    seconds.add([verdict("gate", device_us=0), None])
    assert list(shown(seconds)) == [(REST,) * 3]
