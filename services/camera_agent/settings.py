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
        None,
        description="folder with one folder for each secret, which holds the files username and password",
    )
    segment_bytes: int = Field(
        MAX_SEGMENT_BYTES - (1 << 20),
        ge=1 << 16,
        description="bytes of the largest segment; larger ones are dropped",
    )
    buffer_bytes: int = Field(
        256 << 20, ge=1 << 20, description="limit of the bytes that wait for Kafka, all cameras together"
    )
    camera_lease_s: float = Field(
        10.0, ge=1, le=120, description="seconds without renewal after which an agent loses its cameras"
    )
    connect_s: float = Field(10.0, gt=0, description="seconds that a camera may take to answer or to send")
    reconnect_max_s: float = Field(
        30.0, gt=0, description="longest pause before a camera is tried again, in seconds"
    )
    jump_s: float = Field(
        10.0, gt=0, description="jump of the time stamps, in seconds, that begins a new segment"
    )
