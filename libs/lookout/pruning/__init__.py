"""Decides which patches of a frame the model must see: block maps become motion grids, then keep masks.

In decode, `MotionGather` turns block maps into one motion grid per sampled frame. In prune-encode,
`prune_block` turns the motion grids of a stride block (or luma, if there are no motion vectors) into keep
masks.
"""

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names
from lookout.pruning.gather import (
    DEFAULT_GATHER_METHOD as DEFAULT_GATHER_METHOD,
    GatherMethod as GatherMethod,
    GatherSettings as GatherSettings,
    MotionGather as MotionGather,
)
from lookout.pruning.luma import luma as luma, patch_difference as patch_difference, patch_luma as patch_luma
from lookout.pruning.masks import (
    DEFAULT_TAU as DEFAULT_TAU,
    Accumulation as Accumulation,
    Anchors as Anchors,
    Carry as Carry,
    Change as Change,
    EncodedGroups as EncodedGroups,
    MaskPolicy as MaskPolicy,
    PrunePolicy as PrunePolicy,
    Sample as Sample,
    TemporalMask as TemporalMask,
    TokenPolicy as TokenPolicy,
    drop_tokens as drop_tokens,
    motion as motion,
    prune_block as prune_block,
    temporal_pairs as temporal_pairs,
)
from lookout.pruning.noise import NoiseThreshold as NoiseThreshold
from lookout.pruning.policies import (
    POLICIES as POLICIES,
    PolicyError as PolicyError,
    WholeFrames as WholeFrames,
    anchored_masks as anchored_masks,
    keeping_everything as keeping_everything,
    policies_table as policies_table,
    policy_of as policy_of,
)
from lookout.pruning.raster import Cells as Cells, PatchMap as PatchMap, cover as cover
from lookout.video.motion.grids import (
    GroupedPatches as GroupedPatches,
    Mask as Mask,
    PatchGrid as PatchGrid,
    bilinear_taps as bilinear_taps,
    complete as complete,
    pack_mask as pack_mask,
    spread as spread,
    unpack_mask as unpack_mask,
)

if TYPE_CHECKING:
    from lookout.pruning.settings import (
        PRESETS as PRESETS,
        PruningSettings as PruningSettings,
        preset_policy as preset_policy,
    )

# Sandboxed decoders read no settings, and importing pydantic takes a quarter of their start-up time.
__getattr__ = lazy_names(__name__)
