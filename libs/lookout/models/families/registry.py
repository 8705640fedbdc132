"""The families that Lookout runs, by the `model_type` of their `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

from lookout.errors import LookoutError
from lookout.models.families.internvl import InternVL
from lookout.models.families.llava_next_video import LlavaNextVideo
from lookout.models.families.llava_onevision import LlavaOnevision
from lookout.models.families.llava_onevision2 import LlavaOnevision2
from lookout.models.families.qwen2_5_vl import Qwen25VL
from lookout.models.families.qwen2_vl import Qwen2VL
from lookout.models.families.qwen3_vl import Qwen3VL
from lookout.models.families.smolvlm import SmolVLM
from lookout.models.families.types import Family


class UnknownFamilyError(LookoutError, ValueError):
    """Lookout does not run the checkpoint's family; the message lists the supported families."""


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        InternVL(),
        Qwen25VL(),
        Qwen2VL(),
        Qwen3VL(),
        LlavaOnevision(),
        LlavaOnevision2(),
        LlavaNextVideo(),
        SmolVLM(),
    )
}


def family_of(model_type: object) -> Family:
    """Return the record of a family.

    Raises:
        UnknownFamilyError: The family is not in the registry.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UnknownFamilyError(
            f"model_type {model_type!r} is not a family that Lookout runs: choose one of "
            f"{', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]
