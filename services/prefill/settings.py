"""Settings of prefill."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from lookout.runtime import ServiceSettings
from lookout.store import StoreSettings

__all__ = ["PrefillSettings"]


def _listed(value: object) -> object:
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return value


class PrefillSettings(ServiceSettings):
    """What prefill adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    engine: Literal["transformers", "vllm"] = Field("transformers", description="what runs the windows")
    device: str = Field("cpu", description="cpu, cuda, cuda:1; vllm runs where its wheel was built for")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="the model's arithmetic")
    batch: int = Field(8, ge=1, le=256, description="windows of different cameras computed together, at most")
    describe_tokens: int = Field(32, ge=1, le=512, description="longest description that a watch may ask for")
    token_replicas: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = Field(
        (), description="prune-encode's gRPC addresses, comma-separated; used while the directory is away"
    )
    give_up_s: float = Field(
        300.0, gt=0, description="tokens that cannot be had for so long leave their window degraded"
    )
    shed_after_s: float | None = Field(
        None, gt=0, description="overload: windows older than this get no description; none: all that ask"
    )
    thin_after_s: float | None = Field(
        None, gt=0, description="overload: of windows older than this every second is skipped; none: none is"
    )
    skip_after_s: float | None = Field(
        None, gt=0, description="overload: windows older than this are skipped; none: all are answered"
    )
    idle_age_s: float | None = Field(
        None,
        gt=0,
        description="windows in which nothing changes repeat an answer up to so old; none: never",
    )
    idle_luma: int = Field(
        6, ge=0, le=255, description="grey levels by which a patch may differ between idle anchors"
    )
    store: StoreSettings = Field(
        default_factory=StoreSettings, description="tokens of the open windows, and how they are fetched"
    )

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
    def blocks(self) -> int:
        """Stride blocks of a window."""
        return round(self.window_s / self.stride_s)

    @property
    def samples(self) -> int:
        """Samples of a stride block."""
        return round(self.stride_s * self.fps)
