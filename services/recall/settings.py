"""Settings of recall."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from lookout.runtime.store import StoreSettings
from lookout.runtime.tenants import TenantSettings
from lookout.runtime.worker import Listed, WindowPlanSettings


class RecallSettings(WindowPlanSettings, TenantSettings):
    """Settings of recall in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    model_dir: Path | None = Field(None, description="folder of the checkpoint that prefill runs")
    holders: Listed = Field(
        (),
        description="prefill's gRPC addresses, comma-separated, in addition to those in Redis, for when "
        "Redis does not answer",
    )
    memory_url: str | None = Field(
        None,
        description="durable tier of sealed chapters, the same as prefill's; unset: only holders are asked",
    )
    #: number of frames that each layer reads for an answer, if the question does not say
    frames: ClassVar[int] = 64
    #: in a question about many cameras, number of the best ones to answer again with all frames
    best: ClassVar[int] = 4
    #: maximum number of tokens of a text answer, if the question does not say
    words: ClassVar[int] = 64
    cache_bytes: int = Field(
        512 << 20,
        ge=1 << 20,
        description="maximum bytes of chapters cached in memory; raise it if the same hours are asked about "
        "often",
    )
    #: maximum number of questions and searches at a time, including the running one; further ones are
    #: rejected
    queue: ClassVar[int] = 32
    #: `nice` value, so that recall yields to other processes on its machine
    niceness: ClassVar[int] = 10
    store: StoreSettings = Field(
        default_factory=StoreSettings, description="how Redis is asked, and how tokens of windows are fetched"
    )
