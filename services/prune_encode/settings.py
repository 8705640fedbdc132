"""Settings of prune-encode."""

from typing import ClassVar

from pydantic import Field

from lookout.pruning import PruningSettings
from lookout.runtime.store import StoreSettings
from lookout.runtime.worker import CanarySettings, Listed


class PruneEncodeSettings(CanarySettings, PruningSettings):
    """Settings of prune-encode in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    input_width: int | None = Field(
        None, ge=14, le=4096, description="width of the model's input in pixels; unset: the model's own"
    )
    input_height: int | None = Field(
        None, ge=14, le=4096, description="height of the model's input in pixels; unset: the model's own"
    )
    batch: int = Field(
        64,
        ge=1,
        le=4096,
        description="maximum number of temporal patches in one batch, all cameras together; raise it on a "
        "GPU with memory to spare",
    )
    frame_replicas: Listed = Field(
        (), description="decode's gRPC addresses, comma-separated, used if the directory does not answer"
    )
    #: seconds after which a block is closed without the pixels that are still missing
    pixels_wait_s: ClassVar[float] = 120.0
    store: StoreSettings = Field(default_factory=StoreSettings, description="the tensor store")
