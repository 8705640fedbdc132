"""The leading controller's metrics about its resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from lookout.services.controller.rounds import conditions_before

#: reasons of an unmet condition `Streaming`, without `Paused`, since a paused camera is not meant to stream
NOT_STREAMING: Final = ("NoAgent", "NoRoom", "Connecting", "Reconnecting")
UNANSWERED_S: Final = 600.0
"""Seconds without an answer after which a watch counts as unanswered."""


def resource_numbers(
    cameras: Iterable[Mapping[str, Any]],
    watches: Iterable[Mapping[str, Any]],
    unanswered_s: Callable[[str], float],
) -> Iterator[Metric]:
    """Yield the numbers of cameras that do not stream and of watches without answers.

    Args:
        cameras: The Camera resources as last seen.
        watches: The Watch resources as last seen.
        unanswered_s: Given a watch's id, returns the seconds since one of its windows was last answered.
    """
    reasons = Counter(dict.fromkeys(NOT_STREAMING, 0))
    for camera in cameras:
        streaming = conditions_before(camera).get("Streaming")
        if streaming is not None and not streaming.status and not camera["spec"].get("paused"):
            reasons[streaming.reason] += 1
    family = GaugeMetricFamily(
        "lookout_cameras_not_streaming",
        "Camera resources that do not stream although they are not paused, by the reason in their condition",
        labels=["reason"],
    )
    for reason, count in reasons.items():
        family.add_metric([reason], count)
    yield family
    unanswered = sum(
        accepted.status and unanswered_s(watch["metadata"]["name"]) > UNANSWERED_S
        for watch in watches
        if not watch["spec"].get("disabled") and (accepted := conditions_before(watch).get("Accepted"))
    )
    yield GaugeMetricFamily(
        "lookout_watches_unanswered",
        "enabled Watch resources without an answered window in the last ten minutes",
        value=unanswered,
    )
