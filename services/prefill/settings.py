"""Settings of prefill."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lookout.models.device import engine_device
from lookout.models.engines.sizing import PASS_ROWS, WINDOW_ROWS
from lookout.models.windows import WindowSettings
from lookout.past.memory import HistoryError, Keep
from lookout.runtime.store import StoreSettings
from lookout.runtime.tenants import TenantSettings
from lookout.runtime.worker import CanarySettings, WindowPlanSettings
from lookout.streams.chains import windows_of


def _kept(value: object) -> object:
    """Validate a memory's size or duration; return None for `off`."""
    if not isinstance(value, str) or not value.strip() or value.strip().lower() == "off":
        return None
    try:
        Keep.parse(value)
    except HistoryError as error:
        raise ValueError(str(error)) from None
    return value.strip()


class PrefillSettings(WindowPlanSettings, CanarySettings, TenantSettings):
    """Settings of prefill in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    threads: int = Field(
        16, ge=1, le=256, description="cameras in work at the same time; not less than batch"
    )
    engine: Literal["transformers", "vllm"] = Field(
        "transformers",
        description="engine that computes the windows: transformers, or vllm if it is installed; "
        "docs/engines.md compares them",
    )
    batch: int = Field(
        8,
        ge=1,
        le=256,
        description="maximum number of windows in one batch, each from a different camera; raise it on a "
        "GPU with memory to spare",
    )
    batch_rows: int = Field(
        PASS_ROWS,
        ge=256,
        description="maximum number of rows (tokens) in one pass; a larger batch takes several passes; "
        "lower it if a pass does not fit the device",
    )
    window_rows: int = Field(
        WINDOW_ROWS,
        ge=256,
        description="maximum number of rows (tokens) of a window with its question; device memory is "
        "reserved for this many; vllm refuses longer windows",
    )
    kv_bytes: int | None = Field(
        None,
        ge=1,
        description="maximum bytes of KV kept on the device between windows, all cameras together; unset: 1 "
        "GiB on the CPU; on a GPU the memory left by the weights and one pass",
    )
    kv_spill_dir: Path | None = Field(
        None,
        description="transformers: folder for KV beyond kv_bytes; unset: such KV is dropped",
    )
    cuda_graphs: bool = Field(
        False,
        description="vllm: replay captured CUDA graphs instead of eager steps; starting takes longer, "
        "computing is faster",
    )

    #: maximum seconds by which key windows may delay other cameras' windows, by the measured time per row; a
    #: batch may always contain one key window
    key_delay_s: ClassVar[float] = 0.5
    audit_limit: float | None = Field(
        0.05,
        gt=0,
        le=1,
        description="if p(yes) of a key window and of its incremental answer differ by more than this, the "
        "camera's interval between key windows is halved; unset: no audits",
    )
    #: maximum bytes of open windows' tokens in memory, all cameras together
    block_bytes: ClassVar[int] = 256 << 20
    describe_tokens: int = Field(
        32,
        ge=1,
        le=512,
        description="longest description that a watch may ask for, in tokens; each token takes one step of "
        "the model",
    )
    #: maximum seconds that a window waits for missing tokens, all its blocks together
    give_up_s: ClassVar[float] = 300.0
    skip_after_s: float | None = Field(
        None,
        gt=0,
        description="under overload, windows older than this many seconds are skipped; every second window "
        "is skipped from half this age, and descriptions and audits from a quarter; set it if a late answer "
        "is worth less than the next answer; unset: never",
    )
    #: overload, while several tenants use this device: age in seconds from which windows are skipped if their
    #: tenant is above its fair share of all prefill devices. At twice this age, a tenant above its fair share
    #: of this device is enough
    tenant_fair_after_s: ClassVar[float] = 20.0
    idle_age_s: float | None = Field(
        None,
        gt=0,
        description="seconds for which an answer is repeated while nothing changes; unset: never",
    )
    #: difference in luma (0 to 255) up to which a patch counts as unchanged between anchors
    idle_luma: ClassVar[int] = 6
    memory: Annotated[str | None, BeforeValidator(_kept)] = Field(
        None,
        description="how much of each camera's past is kept for questions: a duration (2h) or a size "
        "(500MB); unset or off: nothing",
    )
    memory_dir: Path = Field(
        Path("memory"), description="folder of this instance's chapters; it must outlive the process"
    )
    memory_url: str | None = Field(
        None,
        description="durable tier of sealed chapters: s3://bucket/prefix, or a folder that all instances "
        "mount; unset: chapters exist only in memory_dir",
    )
    memory_disk_bytes: int = Field(
        20 << 30, ge=1 << 20, description="maximum bytes of chapters on disk, all cameras together"
    )
    memory_chapter_s: float = Field(
        600.0,
        gt=0,
        description="seconds of stream time after which a chapter is sealed and stored; with a shorter "
        "time, less is lost with a node, but there are more objects",
    )
    #: bytes of KV after which a chapter is sealed
    memory_chapter_bytes: ClassVar[int] = 256 << 20
    #: maximum bytes of blocks waiting to be written to chapters; a block beyond this is not written
    memory_queue_bytes: ClassVar[int] = 256 << 20
    #: maximum number of questions that may read this instance's chapters at the same time
    memory_readers: ClassVar[int] = 4
    #: maximum seconds that a read of chapters waits while windows are computed
    memory_yield_s: ClassVar[float] = 0.1
    #: maximum bytes of a camera's cluster indexes in Redis; older indexes are read from their holder
    memory_redis_bytes: ClassVar[int] = 32 << 20
    #: threads that write chapters
    memory_lanes: ClassVar[int] = 1
    store: StoreSettings = Field(default_factory=StoreSettings, description="how tokens are fetched")

    @property
    def place(self) -> str:
        """The device that the model runs on; vLLM uses the one that its wheel was built for."""
        return engine_device(self.engine, self.device)

    @model_validator(mode="after")
    def _memory_needs_reuse(self) -> Self:
        if self.memory is not None and (not self.reuse or self.windows.alone):
            raise ValueError(
                "LOOKOUT_MEMORY stores the KV that windows keep: set LOOKOUT_REUSE=true, and choose a "
                "preset other than strides"
            )
        return self

    @property
    def windows(self) -> WindowSettings:
        """The settings of window plans."""
        return windows_of(self)
