"""Settings of camera-agent."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from lookout.runtime.worker import ServiceSettings
from lookout.wire import MAX_SEGMENT_BYTES


def _networks(value: object) -> object:
    """Parse networks from comma-separated text."""
    if not isinstance(value, str):
        return value
    networks = tuple(part.strip() for part in value.split(",") if part.strip())
    for network in networks:
        ipaddress.ip_network(network, strict=False)
    return networks


class AgentSettings(ServiceSettings):
    """Settings of camera-agent in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    credentials: Path | None = Field(
        None,
        description="folder with one subfolder per secret; each subfolder has the files username, password "
        "and hosts",
    )
    basic_auth: bool = Field(
        False,
        description="send passwords unencrypted (Basic over rtsp://) to cameras that accept nothing else",
    )
    camera_networks: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_networks)] = Field(
        default=(),
        description="networks (CIDR, comma-separated) in which cameras may be; other cameras are rejected; "
        "unset: any network",
    )
    #: bytes of the largest segment; larger ones are dropped. Must not exceed what decode accepts
    segment_bytes: ClassVar[int] = MAX_SEGMENT_BYTES - (1 << 20)
    stream_memory_bytes: int = Field(
        256 << 20,
        ge=128 << 20,
        description="maximum bytes of memory of a process that reads one camera, not counting its "
        "libraries; raise it for very large pictures",
    )
    buffer_bytes: int = Field(
        256 << 20,
        ge=1 << 20,
        description="maximum bytes that wait to be sent to Kafka, all cameras together; raise it to bridge "
        "longer outages of Kafka",
    )
    #: seconds without renewal after which an agent loses its cameras
    camera_lease_s: ClassVar[float] = 10.0
    connect_s: float = Field(
        10.0,
        gt=0,
        description="seconds within which a camera must connect, and then send something; raise it for slow "
        "cameras",
    )
    #: longest pause before a camera is tried again, in seconds
    reconnect_max_s: ClassVar[float] = 30.0
    #: a time-stamp jump of at least this many seconds begins a new segment
    jump_s: ClassVar[float] = 10.0
