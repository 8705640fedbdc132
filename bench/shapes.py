"""Shapes of full-size models, for costs that benches report in addition to what they measure."""

from __future__ import annotations

from lookout.models.flops import DecoderShape

#: Qwen2.5-7B, the language half of InternVL3-8B and of Qwen2.5-VL-7B
QWEN_7B = DecoderShape(layers=28, heads=28, kv_heads=4, head_dim=128, hidden=3584, linear=233_046_016)
#: InternViT-300M, the vision tower of InternVL3-8B
VIT_300M = DecoderShape(layers=24, heads=16, kv_heads=16, head_dim=64, hidden=1024, linear=12 * 1024**2)
#: Qwen2.5-32B, the language half of InternVL3-38B and of Qwen2.5-VL-32B
QWEN_32B = DecoderShape(
    layers=64,
    heads=40,
    kv_heads=8,
    head_dim=128,
    hidden=5120,
    linear=2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 27648,
)
