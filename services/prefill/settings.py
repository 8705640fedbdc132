"""Settings of prefill."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from lookout.runtime import ServiceSettings
from lookout.store import StoreSettings
from lookout.windows import DEFAULT_PRESET, PRESETS, LabelPolicy, WindowSettings

__all__ = ["PrefillSettings"]


def _listed(value: object) -> object:
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return value


class PrefillSettings(ServiceSettings):
    """What prefill adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    threads: int = Field(
        16, ge=1, le=256, description="cameras in work at the same time; at least as many as a batch takes"
    )
    engine: Literal["transformers", "vllm"] = Field("transformers", description="what computes the windows")
    device: str = Field("cpu", description="cpu, cuda, cuda:1; vllm runs where its wheel was built for")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="the model's arithmetic")
    batch: int = Field(8, ge=1, le=256, description="most windows of different cameras computed together")
    batch_rows: int = Field(
        16384, ge=256, description="most rows (tokens) computed in one pass; a larger batch takes several"
    )
    window_rows: int = Field(
        32768, ge=256, description="vllm: most rows (tokens) of one window with a question"
    )
    kv_bytes: int = Field(
        1 << 30, ge=1, description="bytes of KV kept between windows on the device, all cameras together"
    )
    kv_spill_dir: Path | None = Field(
        None,
        description="transformers: folder for KV beyond kv_bytes; unset: it is dropped",
    )
    block_table_bytes: int | None = Field(
        None,
        ge=1,
        description="vllm: bytes of its own block table, in which windows are computed; unset: 1 GiB, or "
        "what window_rows needs",
    )
    cuda_graphs: bool = Field(False, description="vllm: replay captured CUDA graphs instead of eager steps")

    reuse: bool = Field(True, description="keep KV between windows; no: every window is computed in full")
    refresh_frames: int | None = Field(
        None,
        ge=0,
        le=1024,
        description="budget of rows computed again, in whole frames; unset: the preset's",
    )
    labels: LabelPolicy | None = Field(
        None, description="which frames get a label: frame, kept or block; unset: the preset's"
    )
    key_every: int = Field(15, ge=1, description="strides between key windows, which are computed in full")
    key_batch: int = Field(
        1, ge=1, description="most key windows in one batch; other cameras' key windows wait"
    )
    audit_limit: float | None = Field(
        0.05,
        gt=0,
        le=1,
        description="difference of p(yes) between a key window and its incremental answer that halves the "
        "camera's interval between key windows; unset: no audits",
    )
    block_bytes: int = Field(
        256 << 20, ge=0, description="bytes of tokens of open windows kept in memory, all cameras together"
    )
    describe_tokens: int = Field(32, ge=1, le=512, description="longest description that a watch may ask for")
    token_replicas: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="prune-encode's gRPC addresses, comma-separated; used while the directory is away"
    )
    give_up_s: float = Field(
        300.0, gt=0, description="seconds that a window waits for missing tokens, all its blocks together"
    )
    shed_after_s: float | None = Field(
        None,
        gt=0,
        description="overload: windows older than this get no description and no audit; unset: never",
    )
    thin_after_s: float | None = Field(
        None, gt=0, description="overload: skip every second window older than this; unset: never"
    )
    skip_after_s: float | None = Field(
        None, gt=0, description="overload: skip windows older than this; unset: never"
    )
    idle_age_s: float | None = Field(
        None,
        gt=0,
        description="while nothing changes, repeat an answer for at most so many seconds; unset: never",
    )
    idle_luma: int = Field(
        6, ge=0, le=255, description="grey levels by which a patch may differ between idle anchors"
    )
    store: StoreSettings = Field(default_factory=StoreSettings, description="how tokens are fetched")

    @model_validator(mode="after")
    def _ladder(self) -> Self:
        """What costs users least goes first."""
        steps = (self.shed_after_s, self.thin_after_s, self.skip_after_s)
        given = [each for each in steps if each is not None]
        if given != sorted(given):
            raise ValueError(
                "LOOKOUT_SHED_AFTER_S, LOOKOUT_THIN_AFTER_S and LOOKOUT_SKIP_AFTER_S must not fall, "
                f"but are {', '.join(f'{each:g}' for each in given)}"
            )
        return self

    @property
    def windows(self) -> WindowSettings:
        """How windows are planned."""
        name = "codecsight" if self.preset == "codecsight" else DEFAULT_PRESET
        preset = PRESETS[name if self.reuse else "whole"]
        return replace(
            preset,
            blocks=self.window_blocks,
            key_every=self.key_every,
            samples=self.block_samples,
            stride_s=self.stride_s,
            refresh_frames=preset.refresh_frames if self.refresh_frames is None else self.refresh_frames,
            labels=preset.labels if self.labels is None else self.labels,
        )
