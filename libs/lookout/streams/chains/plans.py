"""Names of the settings that windows are planned with."""

from __future__ import annotations

from dataclasses import fields

from lookout.models.windows import Planner
from lookout.runtime.worker import digest


def plan_digest(planner: Planner, *, reuse: bool) -> str:
    """Names the settings that windows are planned with, as verdicts carry it: an answer is computed again
    under the same."""
    settings = planner.settings
    return digest(*(getattr(settings, field.name) for field in fields(settings)), reuse)
