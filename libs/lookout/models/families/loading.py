"""Loads a tower from an ordinary checkpoint folder with the stock transformers classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lookout.models.checkpoint import check_checkpoint
from lookout.models.completeness import check_loaded
from lookout.models.device import dtype_of, limit_threads
from lookout.models.errors import ModelError
from lookout.models.families.registry import UnknownFamilyError, family_of
from lookout.models.families.types import Family
from lookout.models.vision.base import Normalise
from lookout.models.vision.quiet import quiet_loading
from lookout.models.vision.types import Grid, Tower, VisionError
from lookout.text import clean

PROCESSORS = ("video_preprocessor_config.json", "preprocessor_config.json", "processor_config.json")


def load_tower(
    source: str | Path | nn.Module,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    size: tuple[int, int] | None = None,
) -> Tower:
    """Load the tower of a checkpoint folder, or take the tower of a loaded transformers model (shared, not
    copied, on the model's device).

    `size` is the usual input (height, width) in pixels; None means the family's default. From a folder, only
    the tower and the projector are read: the language model's layers stay on disk. `dtype` None means
    `lookout.models.device.default_dtype`.

    Raises:
        VisionError: Lookout has no tower for the family, the folder is not a usable checkpoint, or the family
            cannot take the size.
    """
    limit_threads()
    if isinstance(source, nn.Module):
        model: Any = getattr(source, "model", source)
        folder = Path(str(getattr(source, "name_or_path", "")))
    else:
        folder = Path(source)
        model = _read(folder, torch.device(device), dtype_of(dtype, device))
    family = _family(model.config.model_type, folder)
    return family.tower()(model.eval(), _normalise(folder, family), size)


def tower_grid(folder: Path) -> Grid:
    """Return the grid that a checkpoint's tower has for its usual input size; no weights are read.

    Raises:
        VisionError: The folder has no usable configuration.
    """
    from transformers import AutoModel

    try:
        config = _stock_config(folder)
        family = _family(config.model_type, folder)
        _without_language(config)
        with torch.device("meta"):  # shapes only
            model = AutoModel.from_config(config, trust_remote_code=False)
        return family.tower()(model.eval(), _normalise(folder, family), None).grid
    except VisionError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {clean(error, 300)}"
        raise VisionError(f"{folder}: its configuration cannot be used: {why}") from error


def _stock_config(folder: Path) -> Any:
    """Read a configuration with the class that transformers has for it, or that the family registers.

    Raises:
        VisionError: The family is not in the registry.
    """
    from transformers import AutoConfig, PreTrainedConfig

    settings, _ = PreTrainedConfig.get_config_dict(folder)
    _family(settings.get("model_type"), folder).register()
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _family(model_type: object, folder: Path) -> Family:
    try:
        return family_of(model_type)
    except UnknownFamilyError as error:
        raise VisionError(f"{folder}: no vision tower: {error}") from error


def _read(folder: Path, device: torch.device, dtype: torch.dtype) -> nn.Module:
    if not (folder / "config.json").is_file():
        raise VisionError(f"{folder} is not a checkpoint folder: it has no config.json")
    try:
        check_checkpoint(folder)
        return _read_checked(folder, device, dtype)
    except VisionError:
        raise
    except ModelError as error:
        raise VisionError(str(error)) from error
    except Exception as error:
        # Any exception: transformers checks few values of a configuration, and fails wherever one is wrong.
        why = f"{type(error).__name__}: {clean(error, 300)}"
        raise VisionError(f"{folder} cannot be loaded: {why}") from error


def _read_checked(folder: Path, device: torch.device, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModel

    config = _stock_config(folder)
    _without_language(config)
    report: dict[str, Any]
    # The language model's layers are missing on purpose. The code below checks that nothing else is missing.
    with quiet_loading():
        model, report = AutoModel.from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    check_loaded(folder, report["missing_keys"], model.named_parameters())
    loaded: nn.Module = model.to(device)
    return loaded


def _without_language(config: Any) -> None:
    """Remove the language layers from a configuration, so that the stock class neither allocates nor reads
    them."""
    config.text_config.num_hidden_layers = 0
    if getattr(config.text_config, "layer_types", None):
        config.text_config.layer_types = []


def _normalise(folder: Path, family: Family) -> Normalise:
    for name in PROCESSORS:
        path = folder / name
        if not path.is_file():
            continue
        document = json.loads(path.read_text())
        for part in (document, document.get("video_processor") or {}, document.get("image_processor") or {}):
            if "image_mean" in part and "image_std" in part:
                return Normalise(tuple(part["image_mean"]), tuple(part["image_std"]))
    return Normalise(*family.usual)
