"""Settings for the analysis of a recording."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lookout.errors import LookoutError
from lookout.models.presets import DEFAULT, PresetError, preset_of
from lookout.pruning import MaskPolicy, PolicyError, WholeFrames, policy_of
from lookout.recordings import Mode, PrefillSettings, Score
from lookout.values import check_finite, check_whole
from lookout.video.motion import Fit

PART_FRAMES = 768
"""Maximum number of samples of a part by default: as many as Qwen's processors read at once."""

MOST = 1_000_000
"""Upper limit of every count of samples, groups or threads."""


class AnalysisError(LookoutError, ValueError):
    """The request is invalid."""


@dataclass(frozen=True, slots=True)
class AnalysisSettings:
    """How a recording is analysed.

    Attributes:
        fps: Samples per second.
        start_s: Begin of the time range, in seconds since the first frame.
        end_s: End of the time range (excluded), in seconds since the first frame; None: the recording's end.
        prefill: The size of groups, and which KV entries are kept.
        part_frames: Samples of a part. None: as many as the model was trained for; if that is unknown, as
            many as fit in its positions, but at most `PART_FRAMES`.
        prune: Whether to encode only patches that changed since they were last encoded.
        preset: With `prune`, the preset whose masks are used: a name in `lookout.models.presets.PRESETS` that
            needs no motion vectors. The preset's window settings do not apply, because a part is read once,
            in groups.
        policy: Decides which patches are encoded and which tokens are kept, with or without `prune`: a policy
            or a name in `lookout.pruning.POLICIES`. None: with `prune`, the preset decides; else, all are
            kept.
        stride_frames: With `prune`, one in this many samples is encoded whole.
        mode: How decoding and prefill share the time.
        waiting: Maximum number of decoded groups that wait for the prefill.
        threads: Decoding threads; None: as many as the cores that this process may use.
        fit: How a picture is fitted to the model's input.
        evidence: Maximum number of times that are listed for each answer (`seen_s`).
        describe: Maximum number of tokens of the description that is written if an answer is yes; 0: none.
    """

    fps: float = 2.0
    start_s: float = 0.0
    end_s: float | None = None
    prefill: PrefillSettings = field(default_factory=PrefillSettings)
    part_frames: int | None = None
    prune: bool = False
    preset: str = DEFAULT
    policy: MaskPolicy | str | None = None
    stride_frames: int = 4
    mode: Mode = Mode.OVERLAPPED
    waiting: int = 2
    threads: int | None = None
    fit: Fit = Fit.STRETCH
    evidence: int = 3
    describe: int = 0

    def __post_init__(self) -> None:
        for name in ("fps", "start_s", *(() if self.end_s is None else ("end_s",))):
            check_finite(name, getattr(self, name), AnalysisError)
        if not 0 < self.fps <= 1000:
            raise AnalysisError(f"fps={self.fps:g} must be above 0 and at most 1000")
        if self.start_s < 0 or (self.end_s is not None and self.end_s <= self.start_s):
            until = "the end" if self.end_s is None else f"{self.end_s:g} s"
            raise AnalysisError(
                f"the time range from {self.start_s:g} s to {until} is empty or begins before 0"
            )
        self._check_masks()
        for name in ("part_frames", "threads", "stride_frames", "waiting"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, MOST, AnalysisError)
        for name in ("evidence", "describe"):
            check_whole(name, getattr(self, name), 0, MOST, AnalysisError)

    @property
    def masks(self) -> MaskPolicy:
        """The policy that decides which patches of a stride are encoded."""
        if self.policy is not None:
            return policy_of(self.policy)
        return preset_of(self.preset).masks if self.prune else WholeFrames()

    def _check_masks(self) -> None:
        """Reject policies that need motion vectors, because recordings are decoded without them."""
        try:
            policies: dict[str, MaskPolicy] = {"preset": preset_of(self.preset).masks}
            if self.policy is not None:
                policies["policy"] = policy_of(self.policy)
        except PresetError as error:
            raise AnalysisError(str(error)) from None
        except PolicyError as error:
            raise AnalysisError(str(error).removeprefix("pruning ")) from None
        for name, policy in policies.items():
            if policy.gathers is not None:
                raise AnalysisError(
                    f"{name} {getattr(self, name)!r} needs motion vectors and sliding windows, but an "
                    "analysis reads a recording once, without either: use lookout.Pipeline or lookout eval"
                )


def with_options(settings: AnalysisSettings, options: Mapping[str, Any]) -> AnalysisSettings:
    """Return settings with some fields replaced.

    Args:
        settings: The settings.
        options: New values, by name of a field of `AnalysisSettings` or of its `prefill`.

    Raises:
        AnalysisError: A field does not exist, or a value is invalid.
    """
    prefill_names = {f.name for f in dataclasses.fields(PrefillSettings)}
    names = {f.name for f in dataclasses.fields(AnalysisSettings)}
    unknown = sorted(set(options) - prefill_names - names)
    if unknown:
        raise AnalysisError(
            f"{unknown[0]!r} is not a setting; choose from {', '.join(sorted(prefill_names | names))}"
        )
    prefill = {name: value for name, value in options.items() if name in prefill_names}
    if "score" in prefill:
        prefill["score"] = _score(prefill["score"])
    direct = {name: value for name, value in options.items() if name in names}
    combined = dataclasses.replace(settings, **direct)
    return dataclasses.replace(combined, prefill=dataclasses.replace(combined.prefill, **prefill))


def _score(name: str) -> Score:
    if name not in set(Score):
        raise AnalysisError(f"score must be one of {', '.join(Score)}")
    return Score(name)
