"""What is told of resources that do not do what they are for."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest

from lookout.runtime.observe import Metrics
from lookout.services.controller.convert import NO_AGENT, Condition, conditions
from lookout.services.controller.metrics import UNANSWERED_S, resource_numbers
from tests.unit.services.controller_case import camera_resource, watch_resource

STREAMING = Condition("Streaming", True, "Streaming")
ACCEPTED = Condition("Accepted", True, "Published")


def with_status(resource: dict[str, Any], *stated: Condition) -> dict[str, Any]:
    return {**resource, "status": {"conditions": conditions((), stated, 1, "2026-01-02T03:04:05Z")}}


def shown(cameras: list[dict[str, Any]], watches: list[dict[str, Any]], age_s: float = 0.0) -> str:
    metrics = Metrics("controller")
    metrics.show(lambda: resource_numbers(cameras, watches, lambda _: age_s))
    return generate_latest(metrics.registry).decode()


def test_cameras_that_do_not_stream_are_counted_by_reason() -> None:
    cameras = [
        with_status(camera_resource(), STREAMING),
        with_status(camera_resource(), NO_AGENT),
        with_status(camera_resource(), Condition("Streaming", False, "Reconnecting", "no route to host")),
        with_status(camera_resource(paused=True), Condition("Streaming", False, "Paused")),
        camera_resource(),  # nobody has looked at it yet
    ]
    text = shown(cameras, [])
    assert 'lookout_cameras_not_streaming{reason="NoAgent"} 1.0' in text
    assert 'lookout_cameras_not_streaming{reason="Reconnecting"} 1.0' in text
    assert 'lookout_cameras_not_streaming{reason="Connecting"} 0.0' in text
    assert "Paused" not in text


def test_watches_without_an_answer_are_counted() -> None:
    watches = [
        with_status(watch_resource(), ACCEPTED),
        with_status(watch_resource(disabled=True), ACCEPTED),
        with_status(watch_resource(), Condition("Accepted", False, "Invalid", "spec: ...")),
        watch_resource(),
    ]
    assert "lookout_watches_unanswered 1.0" in shown([], watches, UNANSWERED_S + 1)
    assert "lookout_watches_unanswered 0.0" in shown([], watches, UNANSWERED_S - 1)
