"""Settings of decode."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from lookout.models.families import ModelInput, model_input
from lookout.pruning import GatherSettings, PruningSettings
from lookout.runtime.store import StoreSettings
from lookout.runtime.tenants import TenantSettings
from lookout.runtime.worker import FetchSettings
from lookout.services.decode.backend import Backend
from lookout.services.decode.quota import QuotaLimits
from lookout.video.motion import Fit
from lookout.video.segments import Limits, SamplingGrid
from lookout.wire import MAX_SEGMENT_BYTES

#: input of the model that comes with Lookout, used if no model_dir is set
TINY_INPUT = ModelInput(112, 112, 14)
#: the largest picture, in pixels, that a decoder process of 2 GiB can decode
_USUAL_PIXELS = 36_000_000


class DecodeSettings(FetchSettings, PruningSettings, TenantSettings):
    """Settings of decode in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    input_width: int | None = Field(
        None, ge=14, le=4096, description="width of the model's input in pixels; unset: as model_dir says"
    )
    input_height: int | None = Field(
        None, ge=14, le=4096, description="height of the model's input in pixels; unset: as model_dir says"
    )
    patch: int | None = Field(
        None, ge=1, le=256, description="size of the model's patches in pixels; unset: as model_dir says"
    )
    backend: Backend = Field(
        "software", description="video decoder: software, nvdec (an NVIDIA GPU), auto (nvdec if it works)"
    )
    fit: Fit = Field(
        Fit.STRETCH,
        description="how a picture is fitted to the model's input; it must match the model's training",
    )
    silence_s: float = Field(
        30.0,
        gt=0,
        description="seconds without a segment after which a gap is written; must exceed the time that the "
        "longest segment takes to arrive",
    )
    overlap_s: float = Field(
        5.0,
        ge=0,
        description="seconds by which a segment may overlap the previous one; raise it for recorders that "
        "repeat the end of a segment; a larger step back begins a new epoch",
    )

    camera_health: bool = Field(
        True, description="open incidents for cameras that are offline, frozen, covered, moved and the like"
    )

    #: seconds after which the clock offset (Unix time minus stream time) is measured again
    wall_anchor_s: ClassVar[float] = 300.0
    #: seconds for which a partition claims a camera id that was seen in it
    claim_s: ClassVar[float] = 60.0

    quota_interval_s: float = Field(
        60.0,
        gt=0,
        description="interval of a camera's quotas, in seconds of record time; a longer one allows longer "
        "bursts",
    )
    quota_bytes: int | None = Field(
        4 << 30,
        ge=1,
        description="bytes that one camera may send in the interval, which limits how much a faulty camera "
        "costs the others; unset: no limit",
    )
    quota_work_s: float | None = Field(
        600.0,
        gt=0,
        description="seconds of decoding that one camera may use in the interval; raise it for large "
        "pictures; unset: no limit",
    )
    quota_failures: int | None = Field(
        300,
        ge=1,
        description="dead letters that one camera may cause in the interval; after that, the camera's "
        "segments are rejected without being decoded; unset: no limit",
    )

    segment_bytes: int = Field(
        MAX_SEGMENT_BYTES,
        ge=1,
        description="maximum bytes of a segment; a value above the default matters only for segments given "
        "as URIs, because a record cannot be larger",
    )
    #: seconds of the longest segment accepted
    segment_seconds: ClassVar[float] = 86_400.0
    #: pixels of the largest width or height accepted
    segment_side: ClassVar[int] = 16_384
    segment_pixels: int = Field(
        _USUAL_PIXELS,
        ge=256,
        description="maximum pixels of a picture; if it is raised, decoder processes get more memory",
    )
    #: most CPU seconds for one segment
    decoder_cpu_s: ClassVar[float] = 60.0
    #: maximum seconds (wall clock) for one segment
    decoder_wall_s: ClassVar[float] = 90.0

    store: StoreSettings = Field(default_factory=StoreSettings, description="the tensor store")

    @model_validator(mode="after")
    def _has_input(self) -> Self:
        self.input  # noqa: B018 - raises if it is wrong
        return self

    @property
    def input(self) -> ModelInput:
        """The model's input: from these settings, else from the model's folder, else the tiny model's.

        Raises:
            ValueError: The folder is not a checkpoint, or a size is not a multiple of the patch.
        """
        own = model_input(self.model_dir) if self.model_dir is not None else TINY_INPUT
        given = ModelInput(
            self.input_width or own.width, self.input_height or own.height, self.patch or own.patch
        )
        for name, size, set_here in (
            ("INPUT_WIDTH", given.width, self.input_width),
            ("INPUT_HEIGHT", given.height, self.input_height),
        ):
            if set_here is not None and size % given.patch and size not in (own.width, own.height):
                raise ValueError(f"LOOKOUT_{name}={size} is not a multiple of LOOKOUT_PATCH={given.patch}")
        return given

    @property
    def grid(self) -> SamplingGrid:
        """The sampling grid, in stream time."""
        return SamplingGrid(step_us=self.step_us)

    @property
    def wall_anchor_us(self) -> int:
        """`wall_anchor_s` in microseconds."""
        return round(self.wall_anchor_s * 1e6)

    @property
    def quota(self) -> QuotaLimits:
        """The quota that applies to each camera."""
        return QuotaLimits(self.quota_interval_s, self.quota_bytes, self.quota_work_s, self.quota_failures)

    @property
    def gather(self) -> GatherSettings | None:
        """How motion is gathered on the model's patch grid; None if the pruning policy uses only pixels."""
        policy = self.policy
        method = policy.gathers
        if method is None:
            return None
        model = self.input
        return GatherSettings(model.rows, model.cols, model.patch, method, residual=policy.residual)

    @property
    def decoder_memory(self) -> int:
        """Address space of a decoder process in bytes: 2 GiB, plus 60 bytes per pixel above 36 megapixels."""
        return (2 << 30) + 60 * max(0, self.segment_pixels - _USUAL_PIXELS)

    @property
    def limits(self) -> Limits:
        """The limits for one segment."""
        return Limits(
            bytes=self.segment_bytes,
            side=self.segment_side,
            pixels=self.segment_pixels,
            seconds=self.segment_seconds,
        )
