"""Computes the digest of the settings with which windows are planned."""

from __future__ import annotations

from dataclasses import fields

from lookout.models.windows import Planner
from lookout.runtime.worker import digest


def plan_digest(planner: Planner, *, reuse: bool) -> str:
    """Return the digest of the settings with which windows are planned. Verdicts include the digest, so that
    an answer is recomputed with the same settings.

    Args:
        planner: The planner with the settings.
        reuse: Whether KV is kept between windows.
    """
    settings = planner.settings
    return digest(*(getattr(settings, field.name) for field in fields(settings)), reuse)


def strides_digest(planner: Planner) -> str:
    """Return the digest that verdicts include if their watch asks about strides (`Planner.alone`)."""
    return plan_digest(planner.alone(), reuse=True)
