"""Plans: rows, labels, positions, key windows, what each policy computes, and clear refusals."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from bench.row_policies import RANDOM_K, ROW_POLICIES, falling_shares
from lookout.models.families import LAYOUT_FILE, family_of, load_layout
from lookout.models.windows import (
    NEWLINE,
    PREFIX,
    VISUAL,
    EncodedFrame,
    LabelStyle,
    Layout,
    Planner,
    Policy,
    PositionRangeError,
    Rotary,
    RowPolicy,
    RowRange,
    RunningPositions,
    StrideBlock,
    WindowError,
    WindowPlan,
    WindowSettings,
    ranges_of,
    rows_in,
)
from lookout.models.windows.rotary import WIDENED
from tests.tiny_models import FAMILIES, checkpoint, language_half

LABEL = LabelStyle("frames", tuple(range(100, 110)), 3, head=(90,), tail=(91,))
PLAIN = Layout(
    family="internvl",
    prefix=(1, 2, 3),
    frame_open=(4,),
    frame_close=(5,),
    question_head=(),
    question_tail=(6,),
    yes=7,
    no=8,
    positions=RunningPositions(4096),
    layers=4,
    label=LABEL,
)


def frame(time_us: int, keep: np.ndarray, anchor: bool = False) -> EncodedFrame:
    return EncodedFrame(time_us, anchor, keep, torch.zeros(int(keep.sum()), 8))


def block(index: int, frames: int = 2, shape: tuple[int, int] = (2, 3), stream: str = "cam/0") -> StrideBlock:
    draw = np.random.default_rng(index)
    masks = [np.ones(shape, bool), *(draw.random(shape) < 0.5 for _ in range(frames - 1))][:frames]
    times = [(index * frames + number) * 500_000 for number in range(frames)]
    return StrideBlock(
        stream, index, tuple(frame(t, m, i == 0) for i, (t, m) in enumerate(zip(times, masks, strict=True)))
    )


def chain(planner: Planner, windows: int, size: int) -> list[WindowPlan]:
    plans: list[WindowPlan] = []
    for number in range(windows):
        blocks = [block(index) for index in range(max(0, number - size + 1), number + 1)]
        plans.append(planner.plan(blocks, plans[-1] if plans else None))
    return plans


def test_rows_follow_the_layout() -> None:
    blocks = [block(0), block(1)]
    plan = Planner(PLAIN, WindowSettings(2)).plan(blocks)
    prefix, first, *_ = plan.parts
    assert prefix.block == PREFIX
    assert plan.token_ids[:3].tolist() == [1, 2, 3]
    assert plan.token_ids[first.start : first.visual_start].tolist() == [90, 100, 100, 101, 91, 4]
    assert plan.token_ids[first.visual_start : first.visual_stop].tolist() == [VISUAL] * 6
    assert plan.token_ids[first.visual_stop : first.stop].tolist() == [5]
    assert plan.key
    assert plan.parent is None
    assert plan.compute == (RowRange(0, plan.rows),)
    assert plan.salt.startswith("cam/0:1:")


def test_full_grid_positions_leave_gaps_and_compact_ones_do_not() -> None:
    blocks = [block(0), block(1)]
    gaps = Planner(PLAIN, WindowSettings(2)).plan(blocks)
    dense = Planner(PLAIN, WindowSettings(2, compact=True)).plan(blocks)
    assert dense.positions[0].tolist() == list(range(dense.rows))
    assert gaps.question_position == 3 + 4 * (6 + 6 + 1)
    for segment, one in zip(gaps.parts[1:], [f for b in blocks for f in b.frames], strict=True):
        start = gaps.positions[0, segment.start] + 6
        kept = np.flatnonzero(one.keep)
        assert (
            gaps.positions[0, segment.visual_start : segment.visual_stop].tolist() == (start + kept).tolist()
        )


def test_a_slide_drops_the_oldest_block_and_moves_the_rest() -> None:
    plans = chain(Planner(PLAIN, WindowSettings(3, key_every=1000)), 6, 3)
    before, after = plans[-2:]
    assert before.blocks == (2, 3, 4)
    assert after.blocks == (3, 4, 5)
    assert after.parent == before.digest
    assert after.source[:3].tolist() == [0, 1, 2]
    for segment in after.parts[1:]:
        rows = after.source[segment.start : segment.stop]
        if segment.block == 5:
            assert (rows == -1).all()
        else:
            old = next(s for s in before.parts if (s.block, s.frame) == (segment.block, segment.frame))
            assert rows.tolist() == list(range(old.start, old.stop))
            assert old.label == segment.label


def test_refresh_computes_anchors_and_the_new_block() -> None:
    plans = chain(Planner(PLAIN, WindowSettings(3, key_every=1000)), 5, 3)
    plan = plans[-1]
    want = [s for s in plan.parts[1:] if s.block == 4 or s.anchor]
    assert rows_in(plan.compute).tolist() == rows_in([RowRange(s.start, s.stop) for s in want]).tolist()
    growing = plans[1]
    assert rows_in(growing.compute).min() == next(s for s in growing.parts if s.block == 1).start


@pytest.mark.parametrize("limit", [1, 2])
def test_refresh_may_stop_at_the_oldest_anchors(limit: int) -> None:
    plan = chain(Planner(PLAIN, WindowSettings(4, key_every=1000, anchors=limit)), 6, 4)[-1]
    want = [s for s in plan.parts[1:] if s.block == 5 or (s.anchor and s.block < 2 + limit)]
    assert rows_in(plan.compute).tolist() == rows_in([RowRange(s.start, s.stop) for s in want]).tolist()
    with pytest.raises(WindowError, match="to recompute no anchors, use policy reuse-all"):
        WindowSettings(anchors=0)


@pytest.mark.parametrize("frames", [0, 1, 2, 4, 8])
def test_front_computes_its_budget_of_rows_from_the_front(frames: int) -> None:
    settings_ = WindowSettings(4, Policy.FRONT, key_every=1000, refresh_frames=frames)
    plan = chain(Planner(PLAIN, settings_), 7, 4)[-1]
    whole_frame = 6 + 5 + 1 + 1  # groups, label, opening, closing
    new = next(s.start for s in plan.parts if s.block == 6)
    end = min(3 + frames * whole_frame, new)
    want = [RowRange(0, 0), RowRange(3, end), RowRange(new, plan.rows)]
    assert rows_in(plan.compute).tolist() == rows_in(want).tolist()


@pytest.mark.parametrize(
    ("share", "frames", "long", "short"), [(0.25, 0, 2, 1), (0.25, 2, 2, 2), (0.0, 1, 1, 1), (1.0, 0, 8, 4)]
)
def test_a_budget_that_is_a_share_grows_with_the_window(
    share: float, frames: int, long: int, short: int
) -> None:
    for blocks, budget in ((4, long), (2, short)):
        fixed = WindowSettings(blocks, Policy.FRONT, 1000, refresh_frames=budget)
        grows = WindowSettings(blocks, Policy.FRONT, 1000, refresh_frames=frames, refresh_share=share)
        plans = [chain(Planner(PLAIN, some), 7, blocks)[-1] for some in (fixed, grows)]
        assert len(plans[0].parts) - 1 == 2 * blocks
        assert plans[0].compute == plans[1].compute


def test_a_share_is_a_budget_of_every_policy_and_at_most_the_window() -> None:
    alone, named = (
        chain(Planner(PLAIN, WindowSettings(4, RANDOM_K, 1000, **given)), 7, 4)[-1]
        for given in ({"refresh_share": 0.25}, {"refresh_frames": 2})
    )
    assert alone.compute == named.compute
    with pytest.raises(WindowError, match=r"refresh_share=1\.5 must be between 0 and 1"):
        WindowSettings(refresh_share=1.5)


def busy(index: int, kept: int, frames: int = 3, groups: int = 8) -> StrideBlock:
    """A block whose frames keep `kept` of their groups; the first is a whole anchor."""
    masks = [
        np.arange(groups).reshape(1, groups) < (groups if number == 0 else kept) for number in range(frames)
    ]
    times = [(index * frames + number) * 500_000 for number in range(frames)]
    made = [frame(t, m, n == 0) for n, (t, m) in enumerate(zip(times, masks, strict=True))]
    return StrideBlock("cam/0", index, tuple(made))


def surplus_oracle(kept: list[int], last: int, size: int, since: dict[int, int]) -> int | None:
    """The last block to refresh of the window that ends with block `last`, by the rule in words; `since`
    holds the window at which each block was last computed whole."""
    stale = None
    first = last - size + 1
    for block_ in range(first, last):
        left = range(max(0, since[block_] - size + 1), first)  # what it saw when computed, and sees no more
        view = range(first, block_ + 1)
        surplus = sum(2 * kept[b] for b in left) - len(left) * sum(2 * kept[b] for b in view) / len(view)
        if left and surplus >= 0.1 * sum(8 + 2 * kept[b] for b in view):
            stale = block_
    return stale


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(kept=st.lists(st.integers(0, 8), min_size=9, max_size=14), frames=st.integers(0, 2))
def test_what_saw_a_burst_leave_is_computed_again(kept: list[int], frames: int) -> None:
    size, text = 4, 7
    settings_ = WindowSettings(size, Policy.FRONT, 1000, refresh_frames=frames, refresh_surplus=0.1)
    planner, plan = Planner(PLAIN, settings_), None
    since: dict[int, int] = {}
    for last in range(size - 1, len(kept)):
        blocks = [busy(index, kept[index]) for index in range(last - size + 1, last + 1)]
        plan = planner.plan(blocks, plan, key=plan is None)
        since[last] = last
        if plan.parent is None:
            since |= dict.fromkeys(plan.blocks, last)
            continue
        rows = {b: 8 + 2 * kept[b] + 3 * text for b in plan.blocks}
        stale = surplus_oracle(kept, last, size, since)
        wanted = 0 if stale is None else sum(rows[b] for b in plan.blocks if b <= stale)
        old = sum(rows[b] for b in plan.blocks[:-1])
        wanted = min(old, max(wanted, frames * (8 + text)))
        assert rows_in(plan.compute).tolist() == [*range(3, 3 + wanted), *range(3 + old, plan.rows)]
        ends = np.cumsum([rows[b] for b in plan.blocks[:-1]])
        since |= {b: last for b, end in zip(plan.blocks[:-1], ends, strict=True) if end <= wanted}


def test_nothing_is_refreshed_while_no_frame_left_the_window() -> None:
    settings_ = WindowSettings(3, Policy.FRONT, key_every=1000, refresh_frames=2)
    planner = Planner(PLAIN, settings_)
    blocks = [StrideBlock("cam/0", 0, ()), *(block(k) for k in (1, 2, 3))]
    first = planner.plan(blocks[:3])
    after = planner.plan(blocks[1:], first)  # the block that left had no frame
    assert rows_in(after.compute).min() == next(s.start for s in after.parts if s.block == 3)
    last = planner.plan([*blocks[2:], block(4)], after)
    assert rows_in(last.compute).min() == 3


def test_a_block_that_lost_its_frames_makes_a_key_window() -> None:
    planner = Planner(PLAIN, WindowSettings(3, Policy.FRONT, key_every=1000, refresh_frames=1))
    first = planner.plan([block(0), block(1), block(2)])
    lost = StrideBlock("cam/0", 1, ())
    assert planner.plan([lost, block(2), block(3)], first).key
    assert not planner.plan([block(1), block(2), block(3)], first).key


def sparse_block(index: int, kept: tuple[int, ...]) -> StrideBlock:
    """Frames of 2 x 3 groups that keep so many of them."""
    masks = [(np.arange(6) < count).reshape(2, 3) for count in kept]
    return StrideBlock(
        "cam/0",
        index,
        tuple(frame((index * 4 + n) * 500_000, mask, n == 0) for n, mask in enumerate(masks)),
    )


def test_every_frame_has_its_label_with_and_without_a_token() -> None:
    blocks = [sparse_block(0, (6, 0, 2, 0)), sparse_block(1, (0, 0, 1, 3)), sparse_block(2, (6, 1, 0, 0))]
    planner = Planner(PLAIN, WindowSettings(2, Policy.FRONT, 1000, refresh_frames=1))
    first = planner.plan(blocks[:2])
    second = planner.plan(blocks[1:], first)
    for plan, window, numbers in ((first, (0, 1), range(1, 9)), (second, (1, 2), range(5, 13))):
        parts = plan.parts[1:]
        assert [(part.block, part.frame) for part in parts] == [(b, f) for b in window for f in range(4)]
        assert [part.label for part in parts] == list(numbers)
        for part in parts:
            assert part.visual_start > part.start
            assert part.stop > part.visual_stop
            text = (90, *(100 + int(digit) for digit in f"{part.label:03d}"), 91, 4)
            assert tuple(plan.token_ids[part.start : part.visual_start].tolist()) == text
        assert plan.rows == parts[-1].stop
    kept = np.flatnonzero(second.source >= 0)
    np.testing.assert_array_equal(second.token_ids[kept], first.token_ids[second.source[kept]])


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=2, max_size=7))
@settings(max_examples=60, deadline=None)
def test_positions_rise_and_text_meets_its_frame(kept: list[tuple[int, int, int]]) -> None:
    """Independent of the planner's arrays: walk the prompt row by row."""
    planner = Planner(PLAIN, WindowSettings(3, Policy.FRONT, 1000, refresh_frames=1))
    blocks = [sparse_block(index, counts) for index, counts in enumerate(kept)]
    previous = None
    for end in range(1, len(blocks) + 1):
        window = blocks[max(0, end - 3) : end]
        previous = planner.plan(window, previous)
        at, row = 3, 3
        want = [0, 1, 2]
        for one in window:
            for each in one.frames:
                want += [at + step for step in range(6)]
                want += [at + 6 + int(group) for group in each.kept]
                want += [at + 12]
                at += 13
                row += 7 + len(each.kept)
        assert previous.positions[0].tolist() == want
        assert (previous.rows, previous.question_position) == (row, at)


def test_labels_restart_at_key_windows_only() -> None:
    plans = chain(Planner(PLAIN, WindowSettings(2, key_every=4)), 12, 2)
    keys = [plan.window for plan in plans if plan.key]
    assert keys[0] == 0
    assert set(np.diff(keys[1:])) == {4}
    for before, plan in itertools.pairwise(plans):
        labels = [segment.label for segment in plan.parts[1:]]
        if plan.key:
            assert labels == list(range(1, len(labels) + 1))
            assert plan.since_key == 0
        else:
            assert labels[-1] == before.parts[-1].label + 2
            assert plan.since_key == before.since_key + 1


def test_full_uses_the_labels_of_the_chain() -> None:
    planner = Planner(PLAIN, WindowSettings(2, key_every=1000))
    plans = chain(planner, 4, 2)
    blocks = [block(3), block(4)]
    kept, full = planner.plan(blocks, plans[-1]), planner.plan(blocks, plans[-1], policy=Policy.FULL)
    assert full.token_ids.tolist() == kept.token_ids.tolist()
    assert full.positions.tolist() == kept.positions.tolist()
    assert full.parent is None
    assert (full.source == -1).all()


def test_a_skip_a_new_stream_and_a_demand_make_key_windows() -> None:
    planner = Planner(PLAIN, WindowSettings(2, key_every=1000))
    first = planner.plan([block(0), block(1)])
    assert not planner.plan([block(1), block(2)], first).key
    assert planner.plan([block(2), block(3)], first).key
    assert planner.plan([block(1, stream="cam/1"), block(2, stream="cam/1")], first).key
    assert planner.plan([block(1), block(2)], first, key=True).key


def test_key_strides_differ_between_cameras() -> None:
    planner = Planner(PLAIN, WindowSettings(2, key_every=15))
    phases = {next(k for k in range(15) if planner.is_key(f"cam-{i}/0", k)) for i in range(40)}
    assert len(phases) > 8


@pytest.mark.parametrize("every", [1, 2, 5, 14])
def test_a_key_stride_is_left_out_while_the_chain_is_young(every: int) -> None:
    """A chain begins at any stride; from its second key window on, a camera keeps its own phase."""
    planner = Planner(PLAIN, WindowSettings(2, key_every=every))
    for begin in range(every):
        plan, keys = planner.plan([block(begin)]), [begin]
        for last in range(begin + 1, begin + 4 * every + 1):
            plan = planner.plan([block(last - 1), block(last)], plan)
            keys += [last] * plan.key
        ages = np.diff(keys)
        assert every / 2 <= ages[0] <= planner.settings.longest_chain
        assert set(ages[1:]) <= {every}
        assert all(planner.is_key("cam/0", key) for key in keys[1:])


def test_holes_make_windows_too() -> None:
    planner = Planner(PLAIN, WindowSettings(3, key_every=1000))
    empty = StrideBlock("cam/0", 1, ())
    first = planner.plan([block(0), empty])
    after = planner.plan([block(0), empty, block(2)], first)
    assert {segment.block for segment in after.parts[1:]} == {0, 2}
    with pytest.raises(WindowError, match="has a frame"):
        planner.plan([empty])


@pytest.mark.parametrize("policy", [*Policy, *ROW_POLICIES], ids=lambda policy: policy.value)
def test_policies_compute_what_they_say_at_equal_token_layers(policy: Policy | RowPolicy) -> None:
    planner = Planner(replace(PLAIN, layers=28), WindowSettings(4, key_every=1000))
    plans = [chain(Planner(planner.layout, replace(planner.settings, policy=one)), 7, 4)[-1]
             for one in (Policy.REFRESH, policy)]  # fmt: skip
    spent = [28 * plans[0].computed]
    plan = plans[1]
    if plan.select is not None:
        fresh = int((plan.source[rows_in(plan.compute)] < 0).sum())
        spent.append(
            plan.select.layer * plan.computed + (28 - plan.select.layer) * (fresh + plan.select.rows)
        )
    else:
        spent.append(sum(len(rows_in(plan.runs(layer))) for layer in range(28)))
    if policy in (Policy.FULL, Policy.PRUNE_ONLY):
        assert spent[1] == 28 * plan.rows
    elif policy is Policy.REUSE_ALL:
        assert spent[1] < spent[0]
    else:
        assert abs(spent[1] - spent[0]) <= 28
    if plan.layers is not None:
        for early, late in itertools.pairwise(plan.layers):
            assert set(rows_in(late).tolist()) <= set(rows_in(early).tolist())


@given(st.integers(0, 500), st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_falling_shares_sum_to_the_budget(budget: int, layers: int) -> None:
    counts = falling_shares(budget, layers, 10**6)
    assert len(counts) == layers
    assert sum(counts) == budget * layers
    assert list(counts) == sorted(counts, reverse=True)


@given(st.lists(st.integers(0, 60), unique=True))
@settings(max_examples=50, deadline=None)
def test_runs_and_rows_are_inverse(rows: list[int]) -> None:
    array = np.array(sorted(rows), dtype=np.int64)
    assert rows_in(ranges_of(array)).tolist() == array.tolist()


def test_plans_are_deterministic_and_digests_name_their_lineage() -> None:
    settings_ = WindowSettings(3, RANDOM_K, key_every=1000)
    one, two = chain(Planner(PLAIN, settings_), 6, 3), chain(Planner(PLAIN, settings_), 6, 3)
    assert [plan.digest for plan in one] == [plan.digest for plan in two]
    other = chain(Planner(PLAIN, replace(settings_, policy=Policy.FRONT)), 6, 3)
    assert other[-1].digest != one[-1].digest
    assert len({plan.salt for plan in one}) == 6


def test_bad_blocks_and_settings_are_refused() -> None:
    planner = Planner(PLAIN, WindowSettings(2, key_every=1000))
    with pytest.raises(WindowError, match="at least one block"):
        planner.plan([])
    with pytest.raises(WindowError, match="not consecutive"):
        planner.plan([block(0), block(2)])
    with pytest.raises(WindowError, match="blocks of one stream"):
        planner.plan([block(0), block(1, stream="b/0")])
    with pytest.raises(WindowError, match="a window has at most 2"):
        planner.plan([block(0), block(1), block(2)])
    with pytest.raises(WindowError, match="keep mask"):
        EncodedFrame(0, True, np.ones((2, 2), bool), torch.zeros(3, 8))
    with pytest.raises(WindowError, match="at least 1"):
        WindowSettings(0)
    with pytest.raises(PositionRangeError, match="last position is 49"):
        Planner(replace(PLAIN, positions=RunningPositions(50)), WindowSettings(2)).plan([block(0), block(1)])
    changed = replace(block(1), frames=block(7).frames)
    with pytest.raises(WindowError, match="blocks must not change"):
        planner.plan([changed, block(2)], planner.plan([block(0), block(1)]))


def test_labels_too_wide_ask_for_more_key_windows() -> None:
    with pytest.raises(WindowError, match="lower key_every"):
        LABEL.ids(1000)
    seconds = LabelStyle("seconds", tuple(range(10)), 3, point=(77,))
    assert seconds.ids(125) == (0, 1, 2, 77, 5)
    clock = LabelStyle("clock", tuple(range(10)), 2, point=(77,))
    assert clock.ids(6125) == (1, 0, 77, 1, 2)
    assert clock.tokens == 5
    with pytest.raises(WindowError, match="lower key_every"):
        clock.ids(60_000)


def test_labels_are_wide_enough_for_the_window() -> None:
    """8 frames a second in strides of 8 s: 1 280 frames between key windows."""
    planner = Planner(PLAIN, WindowSettings(2, key_every=15, samples=64, stride_s=8.0))
    assert planner.label is not None
    assert planner.label.ids(1279)[1:5] == (101, 102, 107, 109)
    plans = chain(planner, 3, 2)
    assert all(s.visual_start - s.start == 7 for plan in plans for s in plan.parts[1:])
    seconds = LabelStyle("seconds", tuple(range(10)), 3, point=(77,))
    long_strides = Planner(replace(PLAIN, label=seconds), WindowSettings(2, key_every=15, stride_s=60.0))
    assert long_strides.label is not None
    assert long_strides.label.width == 4
    clock = LabelStyle("clock", tuple(range(10)), 2, point=(77,))
    hours = Planner(replace(PLAIN, label=clock), WindowSettings(2, key_every=150, stride_s=60.0))
    assert hours.label is not None
    assert hours.label.width == 3
    assert hours.label.ids(1509 * 60)[:3] == (1, 5, 0)


# Against the stock models and processors.


def stock_video(
    family: str, fps: float, seconds: float, sampled_fps: float = 2
) -> tuple[Any, list[tuple[float, float]]]:
    """A family's processor on a video of `fps`, sampled at about `sampled_fps`: its inputs, and (the even
    grid's, the picture's own) time of each sampled picture in seconds."""
    from transformers import AutoProcessor
    from transformers.video_utils import VideoMetadata

    processor: Any = AutoProcessor.from_pretrained(checkpoint(family))
    count = round(fps * seconds)
    video = np.zeros((count, 3, 64, 64), np.uint8)
    content = [{"type": "video"}, {"type": "text", "text": "Why?"}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    metadata = VideoMetadata(total_num_frames=count, fps=fps, duration=count / fps)
    inputs = processor(
        text=[text],
        videos=[video],
        video_metadata=[metadata],
        do_sample_frames=True,
        fps=sampled_fps,
        return_tensors="pt",
        return_metadata=True,
    )
    sampled = inputs["video_metadata"][0]
    times = [
        (number / float(sampled.sampled_fps), float(index) / fps)
        for number, index in enumerate(sampled.frames_indices)
    ]
    return inputs, times


def sampled_block(times: list[tuple[float, float]], rows: int, cols: int) -> StrideBlock:
    """Pairs of sampled pictures as decode and prune-encode describe them."""
    if len(times) % 2:
        times = [*times, times[-1]]
    frames = []
    for number in range(0, len(times), 2):
        (slot, first), (_, second) = [(round(a * 1e6), round(b * 1e6)) for a, b in times[number : number + 2]]
        frames.append(
            EncodedFrame(
                first,
                number == 0,
                np.ones((rows, cols), bool),
                torch.zeros(rows * cols, 8),
                slot_us=slot,
                last_us=second,
            )
        )
    return StrideBlock("cam/0", 0, tuple(frames))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl"])
@pytest.mark.parametrize("fps", [29.97, 25.0, 23.976])
def test_times_of_one_grid_are_the_stock_processors(fps: float, family: str) -> None:
    from transformers import AutoModelForImageTextToText

    inputs, times = stock_video(family, fps, 20)
    model = AutoModelForImageTextToText.from_pretrained(checkpoint(family)).model
    seconds = inputs.get("second_per_grid_ts")  # of a family that counts by time
    want, _ = model.get_rope_index(
        inputs["input_ids"],
        inputs["mm_token_type_ids"],
        video_grid_thw=inputs["video_grid_thw"],
        **({} if seconds is None else {"second_per_grid_ts": torch.as_tensor(seconds)}),
    )
    _, rows, cols = inputs["video_grid_thw"][0].tolist()
    plan = Planner(load_layout(checkpoint(family)), WindowSettings(1)).plan(
        [sampled_block(times, rows // 2, cols // 2)]
    )
    assert plan.positions.tolist() == want[:, 0, : plan.rows].tolist()


@pytest.mark.parametrize("fps", [29.97, 25.0, 23.976, 20.0, 10.0])
@pytest.mark.parametrize("sampled_fps", [1, 2, 4, 10, 20])
def test_qwen3_labels_are_the_stock_processors(fps: float, sampled_fps: float) -> None:
    inputs, times = stock_video("qwen3_vl", fps, 20, min(fps, sampled_fps))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint("qwen3_vl"))
    text = tokenizer.decode(inputs["input_ids"][0])
    want = [float(found) for found in re.findall(r"<([0-9.]+) seconds>", text)]
    _, rows, cols = inputs["video_grid_thw"][0].tolist()
    layout = load_layout(checkpoint("qwen3_vl"))
    plan = Planner(layout, WindowSettings(1)).plan([sampled_block(times, rows // 2, cols // 2)])
    assert [part.label / 10 for part in plan.parts[1:]] == want


def grid_blocks(rows: int, cols: int, frames: int) -> list[StrideBlock]:
    whole = np.ones((rows, cols), bool)
    return [StrideBlock("cam/0", k, tuple(frame((k * frames + i) * 1_000_000, whole) for i in range(frames)))
            for k in range(2)]  # fmt: skip


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl"])
@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (3, 5), (6, 2)])
def test_positions_of_one_grid_are_the_stock_models(rows: int, cols: int, family: str) -> None:
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    folder = checkpoint(family)
    model = AutoModelForImageTextToText.from_pretrained(folder).model
    layout = load_layout(folder)
    plan = Planner(layout, WindowSettings(2)).plan(grid_blocks(rows, cols, 3))
    pad = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|video_pad|>")
    ids = torch.from_numpy(np.where(plan.token_ids == VISUAL, pad, plan.token_ids))[None]
    want, _ = model.get_rope_index(
        ids,
        (ids == pad).int() * 2,
        video_grid_thw=torch.tensor([[6, rows * 2, cols * 2]]),
        second_per_grid_ts=torch.tensor([1.0]),
    )
    assert plan.positions.tolist() == want[:, 0].tolist()
    assert plan.question_position == int(want.max()) + 1


@pytest.mark.parametrize(("rows", "cols"), [(4, 4), (3, 5), (6, 2)])
def test_qwen3_positions_are_the_stock_models(rows: int, cols: int) -> None:
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    folder = checkpoint("qwen3_vl")
    model = AutoModelForImageTextToText.from_pretrained(folder).model
    layout = load_layout(folder)
    plan = Planner(layout, WindowSettings(2)).plan(grid_blocks(rows, cols, 3))
    pad = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|video_pad|>")
    ids = torch.from_numpy(np.where(plan.token_ids == VISUAL, pad, plan.token_ids))[None]
    want, _ = model.get_rope_index(
        ids, (ids == pad).int() * 2, video_grid_thw=torch.tensor([[6, rows * 2, cols * 2]])
    )
    assert plan.positions.tolist() == want[:, 0].tolist()


@pytest.mark.parametrize("family", [name for name in FAMILIES if family_of(name).has_processor])
def test_the_prompt_is_the_processors(family: str) -> None:
    """Rows and question spell what the family's processor writes for the same video (labels aside)."""
    folder = checkpoint(family)
    from transformers import AutoProcessor, AutoTokenizer

    processor: Any = AutoProcessor.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    layout = load_layout(folder)
    parts = [layout.prefix]
    for number in range(2):
        label = () if layout.label is None else layout.label.ids(number + 1)
        parts.append((*label, *layout.frame_open, *(VISUAL,) * 2, *layout.frame_close))
    ids = [
        *(i for part in parts for i in part),
        *layout.question_head,
        *tokenizer.encode("Why?", add_special_tokens=False),
        *layout.question_tail,
    ]
    pads = {
        "internvl": "<IMG_CONTEXT>",
        "llava_onevision": "<video>",
        "llava_next_video": "<video>",
        "smolvlm": "<image>",
    }
    pad = pads.get(family, "<|video_pad|>")
    spelled = "".join(pad if i in (VISUAL, NEWLINE) else tokenizer.decode([i]) for i in ids)
    content = [{"type": "video"}, {"type": "text", "text": "Why?"}]
    shown = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    around, intro = "<fake_token_around_image>", family_of(family).prompt.before
    clock = f"\nFrame from 00:00:{around}<global-img>"
    visual = {
        "internvl": f"Frame001: <img>{pad * 2}</img>\nFrame002: <img>{pad * 2}</img>",
        "llava_onevision": pad * 5,
        "llava_next_video": pad * 4,
        "qwen2_5_vl": pad * 4,
        "qwen2_vl": pad * 4,
        "qwen3_vl": "".join(f"<000.{n} seconds><|vision_start|>{pad * 2}<|vision_end|>" for n in (1, 2)),
        "smolvlm": f"{intro}{clock}{pad * 2}{around}{clock}{pad * 2}{around}\n\n",
    }[family]
    placeholder = {
        "internvl": "<video>",
        "llava_onevision": "<video>",
        "llava_next_video": "<video>",
        "qwen2_5_vl": "<|video_pad|>",
        "qwen2_vl": "<|video_pad|>",
        "qwen3_vl": "<|vision_start|><|video_pad|><|vision_end|>",
        "smolvlm": "<video>",
    }[family]
    first = tokenizer.bos_token or ""  # the tokenizer writes it in front of every text
    assert spelled == first + shown.replace(placeholder, visual)


def test_a_checkpoint_may_bring_its_own_layout(tmp_path: Path) -> None:
    for source in checkpoint("internvl").iterdir():
        (tmp_path / source.name).symlink_to(source)
    (tmp_path / LAYOUT_FILE).write_text(json.dumps({"prefix": "<img>", "question_tail": "</img>"}))
    layout = load_layout(tmp_path)
    assert len(layout.prefix) == len(layout.question_tail) == 1
    assert layout.frame_open == layout.question_head == ()
    assert layout.label is None
    (tmp_path / LAYOUT_FILE).write_text('{"suffix": "?"}')
    with pytest.raises(WindowError, match="not a prompt layout"):
        load_layout(tmp_path)


def test_keys_in_bfloat16_are_rotated_in_float32() -> None:
    rotary = Rotary.of(torch.tensor([1.0, 0.1]))
    angles = rotary.angles(torch.arange(2 * WIDENED + 3)[None])
    keys = torch.randn(2 * WIDENED + 3, 2, 4).bfloat16().transpose(0, 1)
    into = torch.empty(2, 2 * WIDENED + 10, 4, dtype=torch.bfloat16)[:, : keys.shape[1]]
    want = Rotary.rotate(keys.float(), angles).bfloat16()
    assert torch.equal(Rotary.rotate(keys, angles), want)
    assert torch.equal(Rotary.rotate(keys, angles, out=into), want)


@pytest.mark.parametrize("family", ["internvl", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
def test_one_rotation_is_the_models_own(family: str) -> None:
    from transformers import AutoModelForImageTextToText

    text = language_half(AutoModelForImageTextToText.from_pretrained(checkpoint(family)))
    sections = text.config.rope_parameters.get("mrope_section")
    rotary = Rotary.of(text.rotary_emb.inv_freq, sections, family_of(family).interleaved)
    places = torch.randint(0, 300, (1 if family == "internvl" else 3, 40))
    shaped = places if family == "internvl" else places[:, None]
    cos, sin = text.rotary_emb(torch.zeros(1), shaped)
    keys = torch.randn(2, 40, 32)
    half = torch.cat([-keys[..., 16:], keys[..., :16]], -1)
    turned = Rotary.rotate(keys, rotary.angles(places))
    torch.testing.assert_close(turned, keys * cos[0] + half * sin[0], atol=1e-4, rtol=1e-4)
