"""HERMES' rule of eviction: what each depth of the model keeps."""

from __future__ import annotations

import numpy as np
import torch

from bench.memory.policies import Flat, hermes

TOKENS, BUDGET, LAYERS = 640, 64, 6


def history(striking: slice) -> tuple[Flat, list[torch.Tensor]]:
    """Tokens of which some answer to the proxy query in every layer."""
    keys = torch.zeros(TOKENS, 8)
    keys[:, 0] = torch.linspace(0, 1e-3, TOKENS)
    keys[striking, 0] = 20.0
    frames = np.repeat(np.arange(TOKENS // 4), 4)
    flat = Flat([keys] * LAYERS, [keys] * LAYERS, frames, np.zeros((1, TOKENS), int), 1)
    return flat, [torch.eye(8)[0]] * LAYERS


def test_first_layers_keep_the_newest_and_deep_ones_what_was_striking() -> None:
    flat, proxy = history(slice(100, 120))
    choose = hermes(flat, proxy, BUDGET)
    kept = [set(choose(layer, proxy[layer]).tolist()) for layer in range(LAYERS)]
    assert all(len(rows) == BUDGET for rows in kept)
    assert set(range(100, 120)) <= kept[-1]
    assert {TOKENS - 1 - n for n in range(32)} <= kept[0]
    old = [sum(row < TOKENS - BUDGET for row in rows) for rows in kept]
    assert old == sorted(old)


def test_what_was_evicted_does_not_come_back() -> None:
    """The choice after a stream is among what was kept of its first half, and what came since."""
    flat, proxy = history(slice(300, 340))
    half = flat.until(TOKENS // 2)
    before, after = hermes(half, proxy, BUDGET), hermes(flat, proxy, BUDGET)
    for layer in range(LAYERS):
        old = {row for row in after(layer, proxy[layer]).tolist() if row < TOKENS // 2}
        assert old <= set(before(layer, proxy[layer]).tolist())


def test_a_short_history_is_kept_whole() -> None:
    flat, proxy = history(slice(0, 4))
    assert hermes(flat, proxy, TOKENS)(0, proxy[0]).tolist() == list(range(TOKENS))
