"""Builds the API's messages from rows of the history."""

from __future__ import annotations

from typing import Any

from lookout.rules.triage import Triage
from lookout.v1.alerts_pb2 import Alert
from lookout.v1.gateway_pb2 import IncidentView
from lookout.wire import from_json, tenant_of


def incident_view(alert: Alert, triage: Triage, *, tenant: str) -> IncidentView:
    """Return the API's view of an incident."""
    view = IncidentView(
        id=alert.incident,
        camera=alert.camera,
        tenant=tenant_of(tenant),
        watch=alert.watch,
        watch_version=alert.watch_version,
        question=alert.question,
        epoch=alert.epoch,
        start=alert.start,
        end=alert.end,
        closed=alert.kind == Alert.KIND_CLOSED,
        reason=alert.reason,
        score=alert.score,
        peak=alert.peak,
        windows=alert.windows,
        evidence=alert.evidence,
        coverage=alert.coverage if alert.HasField("coverage") else None,
        state=triage.state,
        assignee=triage.assignee,
        notes=triage.notes,
        cause=alert.cause,
    )
    if alert.HasField("raised"):
        view.raised.CopyFrom(alert.raised)
    if alert.HasField("opinion"):
        view.opinion.CopyFrom(alert.opinion)
    if triage.right is not None:
        view.right = triage.right
    return view


def view_of_row(row: Any, tenant: str) -> IncidentView:
    """Return the API's view of an incident, from its row."""
    triage = Triage(row.state, row.assignee, row.right, 0, row.notes)
    return incident_view(from_json(row.alert, Alert), triage, tenant=tenant)
