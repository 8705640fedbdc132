"""Settings of prune-encode."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from lookout.pruning import PruningSettings
from lookout.runtime import ServiceSettings
from lookout.store import StoreSettings

__all__ = ["PruneEncodeSettings"]


def _listed(value: object) -> object:
    return (
        tuple(each.strip() for each in value.split(",") if each.strip()) if isinstance(value, str) else value
    )


Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]


class PruneEncodeSettings(ServiceSettings, PruningSettings):
    """What prune-encode adds to every service's settings; each field is `LOOKOUT_<FIELD>`."""

    input_width: int | None = Field(None, ge=14, le=4096, description="model input; none: the model's own")
    input_height: int | None = Field(None, ge=14, le=4096, description="model input; none: the model's own")
    device: str = Field("cpu", description="where the vision tower runs: cpu, cuda, cuda:1")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="the tower's arithmetic")
    batch: int = Field(64, ge=1, le=4096, description="temporal patches of different cameras in one batch")
    frame_replicas: Listed = Field(
        (), description="decode's gRPC addresses, comma-separated; used while the directory is away"
    )
    pixels_wait_s: float = Field(
        120.0, gt=0, description="seconds after which a block is closed without pixels that cannot be had"
    )
    forget_days: float = Field(30.0, gt=0, description="days after which a camera that is away is forgotten")
    store: StoreSettings = Field(default_factory=StoreSettings, description="the tensor store")
