"""LLaVA-OneVision-2 against vLLM's own class: its tower, the names of its weights, its prompt.

transformers has no classes for this family, so vLLM's are the oracle. vLLM loads the published shape of a
tiny checkpoint with its own loader; the folder's Python files end the process if they run.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lookout.models.families import load_layout, load_tokenizer, load_tower
from lookout.models.vision import FrameInput, Tower
from lookout.models.windows import VISUAL, EncodedFrame, Planner, StrideBlock, WindowSettings
from tests.tiny_models import SIZE, language_half, published

pytestmark = [pytest.mark.vllm, pytest.mark.long]
FAMILY: Final = "llava_onevision2"
CLOSE: Final = 2e-4
PATCH: Final = 3 * 14 * 14
VIDEO: Final = "<|vision_start|><|video_pad|><|vision_end|>"
PAD: Final = "<|image_pad|>"


@pytest.fixture(scope="module")
def theirs(_running: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM's model, loaded by vLLM."""
    for family in list(_running):
        _running.pop(family).close()
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader import get_model

    from lookout.models.engines.vllm import internals  # sets vLLM up  # noqa: F401

    load_tower(published(FAMILY))  # registers the configuration's class
    model = ModelConfig(model=str(published(FAMILY)), dtype="float32", max_model_len=512, seed=0)
    config = VllmConfig(model_config=model)
    alone = not parallel_state.model_parallel_is_initialized()
    with set_current_vllm_config(config), torch.inference_mode():
        if alone:
            meeting = f"file://{tmp_path_factory.mktemp('group') / 'meeting'}"
            parallel_state.init_distributed_environment(1, 0, meeting, 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1)
        yield get_model(vllm_config=config)
    if alone:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()


@pytest.fixture(scope="module")
def ours() -> Tower:
    return load_tower(published(FAMILY), size=(SIZE[FAMILY], SIZE[FAMILY]))


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max() / other.abs().mean())


def picture(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (1, rows * 14, cols * 14, 3), dtype=np.uint8)


def canvas(tower: Any, frame: FrameInput) -> tuple[torch.Tensor, torch.Tensor]:
    """The kept patches of a frame in groups, normalised, and their times (0), rows and columns."""
    cut, places = [], []
    for row, col in np.argwhere(frame.keep):
        for y, x in itertools.product((2 * row, 2 * row + 1), (2 * col, 2 * col + 1)):
            cut.append(frame.pixels[0, 14 * y : 14 * y + 14, 14 * x : 14 * x + 14].transpose(2, 0, 1))
            places.append((0, y, x))
    pixels = tower.normalise(torch.from_numpy(np.stack(cut)), torch.float32)
    return pixels.flatten(1), torch.tensor(places)


@pytest.mark.parametrize(("rows", "cols"), [(8, 8), (4, 10), (6, 2)])
def test_whole_frames_are_those_of_vllms_frame_backend(
    theirs: Any, ours: Tower, rows: int, cols: int
) -> None:
    """Every frame is a row of the grid by itself, as vLLM hands over the frames of a video."""
    keep = np.ones((rows // 2, cols // 2), bool)
    frames = [FrameInput(picture(rows, cols, seed), keep) for seed in range(5)]
    parts = [canvas(ours, frame) for frame in frames]
    (want,) = theirs.embed_multimodal(
        pixel_values_videos=torch.cat([pixels for pixels, _ in parts]),
        patch_positions_videos=torch.cat([places for _, places in parts]),
        video_grid_thw=torch.tensor([[1, rows, cols]] * len(frames)),
        video_num_frames=torch.tensor([len(frames)]),
    )
    got = torch.cat([frame.tokens for frame in ours.encode(frames)])
    assert apart(got, want) < CLOSE


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_pruned_frames_are_canvases_of_their_groups(theirs: Any, ours: Tower, data: st.DataObject) -> None:
    """vLLM's tower on the kept groups alone, packed into a canvas with their own positions."""
    bits = data.draw(st.lists(st.booleans(), min_size=ours.grid.tokens, max_size=ours.grid.tokens))
    keep = np.array(bits).reshape(ours.grid.group_rows, ours.grid.group_cols)
    if not keep.any():
        return
    frame = FrameInput(picture(8, 8, sum(bits)), keep)
    pixels, places = canvas(ours, frame)
    want = theirs.visual(pixels, torch.tensor([[1, 2, 2 * int(keep.sum())]]), places)
    assert apart(ours.encode([frame])[0].tokens, want) < CLOSE


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3
    ),
    seed=st.integers(0, 1000),
)
def test_canvases_of_any_positions_attend_in_the_same_windows(
    theirs: Any, ours: Any, shapes: list[tuple[int, int, int]], seed: int
) -> None:
    """Canvases of patches from anywhere, in windows of `frame_windows_size` (3 here)."""
    grid = torch.tensor([(frames, 2 * rows, 2 * cols) for frames, rows, cols in shapes])
    draw = torch.Generator().manual_seed(seed)
    count = int(grid.prod(-1).sum())
    pixels = torch.randn(count, PATCH, generator=draw)
    places = torch.randint(0, 500, (count, 3), generator=draw)
    want = theirs.visual(pixels, grid, places)
    assert apart(ours.vision(pixels, grid, places).pooler_output, want) < CLOSE


def test_time_and_windows_count(theirs: Any) -> None:
    """The oracle is no tautology: tokens change with the time of a frame, and with its window."""
    pixels = torch.randn(32, PATCH, generator=torch.Generator().manual_seed(1))
    rows = torch.stack(torch.meshgrid(*(torch.arange(n) for n in (2, 4, 4)), indexing="ij"), -1).view(-1, 3)
    together = theirs.visual(pixels, torch.tensor([[2, 4, 4]]), rows)
    alone = theirs.visual(pixels, torch.tensor([[1, 4, 4]] * 2), rows)
    still = theirs.visual(pixels, torch.tensor([[1, 4, 4]] * 2), rows * torch.tensor([0, 1, 1]))
    assert apart(together, alone) > 100 * CLOSE
    assert apart(still[4:], alone[4:]) > 100 * CLOSE
    assert apart(still[:4], alone[:4]) < CLOSE


def test_vllm_reads_the_weights_that_lookout_reads(theirs: Any, ours: Any) -> None:
    """vLLM's loader refuses a name that it does not know and a weight that is missing. It has packed those of
    linear layers for the CPU; the others can be compared."""
    from transformers import AutoModelForImageTextToText

    named = dict(ours.vision.named_parameters())
    assert named.keys() == dict(theirs.visual.named_parameters()).keys()
    held = {name: weight for name, weight in theirs.visual.named_parameters() if weight.numel()}
    assert all(torch.equal(weight, named[name]) for name, weight in held.items())
    text = language_half(AutoModelForImageTextToText.from_pretrained(published(FAMILY)))
    for name, weight in theirs.language_model.model.named_parameters():
        if name.endswith("norm.weight"):
            assert torch.equal(weight, text.get_parameter(name)), name


def frames_of(masks: list[np.ndarray], step_us: int) -> list[EncodedFrame]:
    return [
        EncodedFrame(number * step_us, number == 0, keep, torch.zeros(int(keep.sum()), 128))
        for number, keep in enumerate(masks)
    ]


def spelled(ids: Any, folder: Path) -> str:
    """Tokens as text, without the leading zeros of times."""
    tokenizer = load_tokenizer(folder)
    pad = tokenizer.convert_tokens_to_ids(PAD)
    return re.sub(r"(?<=<)0+(?=\d)", "", tokenizer.decode([pad if i == VISUAL else int(i) for i in ids]))


def replaced(folder: Path, **video: Any) -> list[int]:
    """What vLLM's processor writes in place of a video; its parts that the folder's code makes are given."""
    from vllm.model_executor.models.llava_onevision2 import LlavaOnevision2MultiModalProcessor

    tokenizer = load_tokenizer(folder)
    info = SimpleNamespace(
        get_image_processor=lambda **_: SimpleNamespace(merge_size=2), get_tokenizer=lambda: tokenizer
    )
    item = {name: SimpleNamespace(data=torch.as_tensor(value)) for name, value in video.items()}
    updates: Any = LlavaOnevision2MultiModalProcessor._get_prompt_updates(
        SimpleNamespace(info=info), None, {}, {"video": [item]}
    )
    (update,) = [update for update in updates if update.modality == "video"]
    assert spelled(update.target, folder) == VIDEO
    tokens: list[int] = update.replacement(0).full
    return tokens


def test_the_prompt_is_that_of_vllms_frame_backend() -> None:
    from vllm.model_executor.models.llava_onevision2 import (
        _expand_video_markers_in_prompt,
        _frame_video_to_pil_and_timestamps,
    )

    folder = published(FAMILY)
    layout, tokenizer = load_layout(folder), load_tokenizer(folder)
    plan = Planner(layout, WindowSettings(1)).plan(
        [StrideBlock("gate/0", 0, tuple(frames_of([np.ones((4, 3), bool)] * 6, 500_000)))]
    )
    _, times = _frame_video_to_pil_and_timestamps(
        (np.zeros((6, 4, 4, 3), np.uint8), {"fps": 10.0, "frames_indices": list(range(0, 30, 5))})
    )
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Why?"}]}],
        chat_template=json.loads((folder / "chat_template.json").read_text())["chat_template"],
        add_generation_prompt=True,
        tokenize=False,
    )
    want = _expand_video_markers_in_prompt(shown, [times], timestamp_decimals=1)
    question = tokenizer.encode("Why?", add_special_tokens=False)
    ours = spelled([*plan.token_ids, *layout.question_head, *question, *layout.question_tail], folder)
    assert ours == want.replace(PAD, 12 * PAD)
    got = replaced(folder, video_grid_thw=[[1, 8, 6]] * 6, frame_timestamps=times)
    assert spelled(plan.token_ids[len(layout.prefix) :], folder) == spelled(got, folder)


def test_pruned_frames_are_runs_of_vllms_codec_backend() -> None:
    """The codec backend writes a run of pads for each source frame, and a newline after it."""
    folder, draw = published(FAMILY), np.random.default_rng(3)
    masks = [np.ones((4, 3), bool), *(draw.random((4, 3)) < 0.4 for _ in range(5))]
    assert all(keep.any() for keep in masks)
    layout = load_layout(folder)
    plan = Planner(layout, WindowSettings(1)).plan(
        [StrideBlock("gate/0", 0, tuple(frames_of(masks, 500_000)))]
    )
    times = np.repeat([5 * number for number in range(6)], [4 * keep.sum() for keep in masks])
    positions = np.stack([times, np.zeros_like(times), np.zeros_like(times)], 1)
    got = replaced(
        folder,
        video_grid_thw=[[6, 8, 6]],
        video_is_codec=1,
        codec_fps=10 * 10**9,
        patch_positions_videos=positions,
    )
    ours = spelled(plan.token_ids[len(layout.prefix) :], folder)
    assert ours.replace("<|vision_end|>", "<|vision_end|>\n") == spelled(got, folder)
