"""The oracle: a model's own forward on whole frames, in which dropped patches are masked out as keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lookout.models.vision import FrameInput, FrameTokens, Grid
from tests import tiny_models

NAME = "oracle_flash_masked"
_kept_keys: list[torch.Tensor] = []


def masked(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float = 1.0,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Dense softmax with an explicit mask: same segment and a kept key, or oneself."""
    rows = query.shape[2]
    segment = torch.zeros(rows, dtype=torch.long)
    if cu_seq_lens_q is not None:
        segment[cu_seq_lens_q[1:-1].long()] = 1
        segment = segment.cumsum(0)
    keys = _kept_keys[0].view(-1, 1, 1, rows)
    mask = (segment[:, None] == segment) & keys | torch.eye(rows, dtype=torch.bool)
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2), None


class DenseOracle:
    """The stock model and the stock video processor of one tiny checkpoint."""

    def __init__(self, family: str) -> None:
        from transformers import AutoImageProcessor, AutoModel, AutoVideoProcessor

        tiny_models.register_attention(NAME, masked)
        folder = tiny_models.checkpoint(family)
        self.family = family
        self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        kind = AutoImageProcessor if family == "llava_onevision2" else AutoVideoProcessor
        self.processor = kind.from_pretrained(folder)
        names = {"llava_onevision2": "visual", "smolvlm": "vision_model"}
        name = names.get(family, "visual" if "qwen" in family else "vision_tower")
        self.vision = getattr(self.model, name)

    @torch.inference_mode()
    def encode(self, frame: FrameInput, grid: Grid, *, own: bool = False) -> FrameTokens:
        """Tokens of the kept groups; with `own`, by the model's own attention, nothing masked."""
        patches = torch.from_numpy(grid.patches(frame.keep))
        self.vision.config._attn_implementation = "sdpa" if own else NAME
        _kept_keys[:] = [self._keys(patches, grid)]
        tokens, deep = getattr(self, f"_{self.family}")(frame)
        kept = torch.from_numpy(np.flatnonzero(frame.keep))
        return FrameTokens(tokens[kept], None if deep is None else deep[:, kept])

    def _keys(self, patches: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Kept keys in the order in which the tower holds its rows."""
        if self.family in {"internvl", "llava_next_video"}:  # behind a class token
            return torch.cat([torch.ones(1, dtype=torch.bool), patches.flatten()])
        if self.family in {"llava_onevision", "smolvlm"}:
            return patches.flatten()
        m = grid.merge
        groups = patches.view(grid.group_rows, m, grid.group_cols, m).permute(0, 2, 1, 3).reshape(-1, m * m)
        if self.family == "qwen2_5_vl":
            from transformers.vision_utils import get_vision_window_index

            config = self.vision.config
            shape = torch.tensor([[1, grid.rows, grid.cols]])
            order, _ = get_vision_window_index(shape, m, config.window_size, config.patch_size)
            groups = groups[order]
        return groups.flatten()

    def _pixels(self, frame: FrameInput) -> Any:
        video = torch.from_numpy(frame.pixels).permute(0, 3, 1, 2)
        return self.processor([video], return_tensors="pt", do_resize=False, do_sample_frames=False)

    def _internvl(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        pixels = self._pixels(frame)["pixel_values_videos"].flatten(0, 1)
        config = self.model.config
        out = self.model.get_image_features(
            pixels,
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
        )
        return out.pooler_output[0], None

    def _llava_onevision(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        pixels = self._pixels(frame)["pixel_values_videos"]
        config = self.model.config
        out = self.model.get_video_features(
            pixels,
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
        )
        return out.pooler_output[0, :-1], None

    def _llava_next_video(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        out = self.model.get_video_features(self._pixels(frame)["pixel_values_videos"])
        return out.pooler_output[0].flatten(0, -2), None

    def _smolvlm(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        video = torch.from_numpy(frame.pixels).permute(0, 3, 1, 2)
        edge = {"longest_edge": video.shape[-1]}  # the processor pads to this size
        pixels = self.processor(
            [video], return_tensors="pt", do_resize=False, do_sample_frames=False, max_image_size=edge
        )
        return self.model.get_image_features(pixels["pixel_values"]).pooler_output[0], None

    def _qwen2_5_vl(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        inputs = self._pixels(frame)
        out = self.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"])
        return out.pooler_output[0], None

    def _llava_onevision2(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        """A frame is a picture of its own, whose patches are at time 0."""
        inputs = self.processor(list(frame.pixels), return_tensors="pt", do_resize=False)
        ((_, rows, cols),) = inputs["image_grid_thw"].tolist()
        blocks = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij"), -1)
        blocks = blocks.view(rows // 2, 2, cols // 2, 2, 2).transpose(1, 2).reshape(-1, 2)
        places = torch.cat([torch.zeros(len(blocks), 1, dtype=torch.long), blocks], 1)
        return self.vision(inputs["pixel_values"], inputs["image_grid_thw"], places).pooler_output, None

    def _qwen2_vl(self, frame: FrameInput) -> tuple[torch.Tensor, None]:
        return self._qwen2_5_vl(frame)

    def _qwen3_vl(self, frame: FrameInput) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self._pixels(frame)
        out = self.model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"])
        return out.pooler_output[0], torch.stack([torch.cat(list(level)) for level in out.deepstack_features])


def difference(one: FrameTokens, other: FrameTokens) -> float:
    """Largest difference relative to the other's scale; infinite when shapes differ."""
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = [(one.tokens, other.tokens)]
    if one.deepstack is not None and other.deepstack is not None:
        pairs = [*pairs, (one.deepstack, other.deepstack)]
    elif (one.deepstack is None) != (other.deepstack is None):
        return float("inf")
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    if not one.tokens.numel():
        return 0.0
    return max(float((a - b).abs().max() / b.abs().mean()) for a, b in pairs)
