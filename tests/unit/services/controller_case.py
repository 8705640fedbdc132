"""Custom resources as the Kubernetes API returns them."""

from __future__ import annotations

from typing import Any

from lookout.services.controller.cluster import FINALIZER

CREATED = "2026-01-02T03:04:05Z"


QUESTION = "Is anyone lying on the ground?"


def watch_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "fall", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    return {"metadata": metadata, "spec": {"question": QUESTION, **spec}}


def notification_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "guards", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    webhook = {"url": "https://hooks.example.org/lookout", "secrets": ["guards-key"]}
    return {"metadata": metadata, "spec": spec or {"webhook": webhook}}


def camera_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "gate-3", "generation": 1, "creationTimestamp": CREATED, "finalizers": [FINALIZER]}
    return {"metadata": metadata, "spec": {"url": "rtsp://10.1.2.3/live", **spec}}
