"""Block maps to motion grids to keep masks: which patches of a frame the model must see.

In decode: `MotionGather` turns block maps into one motion grid per sampled frame. In prune-encode:
`prune_block` turns the motion grids (or luma, where there are none) of a stride block into keep masks.
"""

from lookout.motion.grids import (
    GroupedPatches,
    Mask,
    PatchGrid,
    bilinear_taps,
    complete,
    pack_mask,
    spread,
    unpack_mask,
)
from lookout.pruning.gather import (
    DEFAULT_GATHER_METHOD,
    GatherMethod,
    GatherSettings,
    MotionGather,
    with_method,
)
from lookout.pruning.luma import luma, patch_difference, patch_luma
from lookout.pruning.masks import (
    DEFAULT_TAU,
    Accumulation,
    Anchors,
    Carry,
    Change,
    EncodedGroups,
    MaskPolicy,
    PrunePolicy,
    Sample,
    TemporalMask,
    TokenPolicy,
    drop_tokens,
    motion,
    prune_block,
    temporal_pairs,
)
from lookout.pruning.noise import NoiseThreshold
from lookout.pruning.policies import (
    FLEET_POLICIES,
    POLICIES,
    DissimilarTokens,
    NamedPolicy,
    PolicyError,
    RandomPolicy,
    anchored_masks,
    keeping_everything,
    policies_table,
    policy_of,
)
from lookout.pruning.raster import Cells, Cover, PatchMap, cover
from lookout.pruning.settings import PRESETS, Preset, PruningSettings, preset_policy

__all__ = [
    "DEFAULT_GATHER_METHOD",
    "DEFAULT_TAU",
    "FLEET_POLICIES",
    "POLICIES",
    "PRESETS",
    "Accumulation",
    "Anchors",
    "Carry",
    "Cells",
    "Change",
    "Cover",
    "DissimilarTokens",
    "EncodedGroups",
    "GatherMethod",
    "GatherSettings",
    "GroupedPatches",
    "Mask",
    "MaskPolicy",
    "MotionGather",
    "NamedPolicy",
    "NoiseThreshold",
    "PatchGrid",
    "PatchMap",
    "PolicyError",
    "Preset",
    "PrunePolicy",
    "PruningSettings",
    "RandomPolicy",
    "Sample",
    "TemporalMask",
    "TokenPolicy",
    "anchored_masks",
    "bilinear_taps",
    "complete",
    "cover",
    "drop_tokens",
    "keeping_everything",
    "luma",
    "motion",
    "pack_mask",
    "patch_difference",
    "patch_luma",
    "policies_table",
    "policy_of",
    "preset_policy",
    "prune_block",
    "spread",
    "temporal_pairs",
    "unpack_mask",
    "with_method",
]
