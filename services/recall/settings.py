"""Settings of recall."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from lookout.runtime.store import StoreSettings
from lookout.runtime.tenants import TenantSettings
from lookout.runtime.worker import Listed, WindowPlanSettings


class RecallSettings(WindowPlanSettings, TenantSettings):
    """What recall adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    model_dir: Path | None = Field(None, description="folder of the checkpoint that prefill runs")
    holders: Listed = Field(
        (),
        description="prefill's gRPC addresses, comma-separated, asked beside those in Redis; for when "
        "that does not answer",
    )
    memory_url: str | None = Field(
        None, description="durable tier of sealed chapters, as prefill's; unset: only holders are asked"
    )
    frames: int = Field(64, ge=1, le=4096, description="frames that an answer reads in every layer")
    best: int = Field(
        4, ge=1, le=256, description="cameras of a question to many that are answered with all frames"
    )
    words: int = Field(64, ge=1, le=512, description="longest text of an answer, in tokens")
    cache_bytes: int = Field(512 << 20, ge=1 << 20, description="bytes of chapters kept in memory")
    queue: int = Field(
        32, ge=1, le=1024, description="questions that may wait for their turn; others are refused"
    )
    niceness: int = Field(
        10, ge=0, le=19, description="how far recall gives way to other processes of its machine (nice)"
    )
    foresee: bool | None = Field(
        None,
        description="fetch what the next layer probably needs ahead; unset: unless the model is on the CPU, "
        "which has no time to spare for it",
    )
    store: StoreSettings = Field(
        default_factory=StoreSettings, description="how Redis is asked, and how tokens of windows are fetched"
    )
