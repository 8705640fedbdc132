"""The formulas against what PyTorch counts in a stock forward pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lookout.models.engines.transformers.model import take_language_model
from lookout.models.flops import causal_pairs
from tests import tiny_models

ROWS = 23


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_forward_pass_costs_what_pytorch_counts(family: str) -> None:
    from transformers import AutoModelForImageTextToText

    whole = AutoModelForImageTextToText.from_pretrained(
        tiny_models.checkpoint(family), attn_implementation="eager"
    )
    ids = torch.arange(ROWS)[None]
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        tiny_models.language_half(whole)(input_ids=ids)
    shape = take_language_model(whole, family, torch.device("cpu")).shape
    assert shape.flops(ROWS, ROWS * ROWS) == counter.get_total_flops()


@pytest.mark.parametrize(("rows", "before"), [(0, 0), (1, 0), (5, 0), (5, 7)])
def test_causal_pairs_are_those_of_the_mask(rows: int, before: int) -> None:
    mask = torch.ones(before + rows, before + rows).tril()[before:]
    assert causal_pairs(rows, before) == int(mask.sum())
