"""Settings of camera-agent."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lookout.runtime import ServiceSettings
from lookout.wire import MAX_SEGMENT_BYTES

__all__ = ["AgentSettings"]


class AgentSettings(ServiceSettings):
    """What camera-agent adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    credentials: Path | None = Field(
        None, description="folder with a folder a secret, each with files username and password"
    )
    segment_bytes: int = Field(
        MAX_SEGMENT_BYTES - (1 << 20), ge=1 << 16, description="the largest segment; longer ones are dropped"
    )
    buffer_bytes: int = Field(
        256 << 20, ge=1 << 20, description="segments waiting for Kafka, all cameras together"
    )
    camera_lease_s: float = Field(
        10.0, ge=1, le=120, description="an agent that is silent so long loses its cameras"
    )
    connect_s: float = Field(10.0, gt=0, description="how long a camera may take to answer or to send")
    reconnect_max_s: float = Field(30.0, gt=0, description="longest pause before a camera is tried again")
    jump_s: float = Field(10.0, gt=0, description="time stamps that jump so far begin a new segment")
