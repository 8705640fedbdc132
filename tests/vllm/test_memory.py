"""Chapters that the vLLM engine's own KV is written into, beside those of the transformers engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lookout.models.engines import StreamLostError
from lookout.models.engines.born import KeepsRows, born_block, prefix_of
from lookout.models.engines.transformers.memory import ask
from lookout.past.memory import Keep, MemorySettings, Past, RangeCache, RetrievalSettings
from lookout.past.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.past.memory.past import fetch_from
from tests.tiny_models import FAMILIES
from tests.unit.models.engines.scenes import engine as reference
from tests.vllm.scenes import planner, slide

pytestmark = pytest.mark.vllm
CLOSE, RELATIVE = 2e-5, 1e-4
"""As the stored KV of both engines is compared elsewhere."""
LOGITS = 2e-3
"""Of an answer over six layers of such KV."""
EVERYTHING = RetrievalSettings(frames=10**6)

#: one with rotary positions of three axes and one without; the others share their code
SHORT = ("qwen2_5_vl",)
each_family = pytest.mark.parametrize(
    ("vllm_engine", "family"),
    [pytest.param(f, f, marks=[] if f in SHORT else pytest.mark.long, id=f) for f in FAMILIES],
    indirect=["vllm_engine"],
)

one_family = pytest.mark.parametrize(
    ("vllm_engine", "family"), [("internvl", "internvl")], indirect=["vllm_engine"], ids=["internvl"]
)


def chapters(root: Path, engine: Any) -> ChapterFolder:
    return ChapterFolder(
        root,
        ChapterRules(Keep(seconds=1e12)),
        engine.kv_shape,
        settings=MemorySettings(window=3, construct=4, cluster_tokens=12, visual_frames=4, smallest=4),
        bias=engine.key_bias,
        about={"model_digest": "m1", "stride_us": 4_000_000},
    )


def answer(engine: Any, folder: ChapterFolder) -> tuple[float, float]:
    reading = [folder.read(facts.name) for facts in folder.chapters("gate")]
    fetch = fetch_from({chapter.name: files for chapter, files in reading})
    past = Past([chapter for chapter, _ in reading], RangeCache(fetch, 1 << 30), EVERYTHING)
    said = ask(engine, past, "Is anyone lying?")
    return said.yes_logit, said.no_logit


@pytest.mark.long
@each_family
def test_chapters_of_both_engines_are_alike(vllm_engine: Any, family: str, tmp_path: Path) -> None:
    engines = {"vllm": vllm_engine, "transformers": reference(family)}
    assert isinstance(vllm_engine, KeepsRows)
    assert vllm_engine.kv_shape == reference(family).kv_shape
    torch.testing.assert_close(vllm_engine.key_bias, reference(family).key_bias.float())
    folders = {name: chapters(tmp_path / name, engine) for name, engine in engines.items()}
    for (request,) in slide(family, planner(vllm_engine), ["born/0"], range(6), {}):
        born = {}
        for name, engine in engines.items():
            engine.run([request])[0].unwrap()
            block = born_block(engine, request.plan, request.blocks[-1])
            born[name] = Born("gate", 1, block, prefix_of(engine, request.plan), 0)
            folders[name].add(born[name])
        own, other = born["vllm"], born["transformers"]
        for part in ("keys", "values", "embeddings"):
            torch.testing.assert_close(
                getattr(own.block, part), getattr(other.block, part), atol=CLOSE, rtol=RELATIVE
            )
        assert (own.block.frame == other.block.frame).all()
        assert (own.block.places == other.block.places).all()
        torch.testing.assert_close(own.prefix.keys, other.prefix.keys, atol=CLOSE, rtol=RELATIVE)
    for engine in engines.values():
        engine.close_stream("born/0")
    for folder in folders.values():
        folder.seal("gate")
    assert answer(reference(family), folders["vllm"]) == pytest.approx(
        answer(reference(family), folders["transformers"]), abs=LOGITS
    )


@pytest.mark.long
@one_family
def test_rows_of_another_window_are_not_given(vllm_engine: Any, family: str) -> None:
    first, second = slide(family, planner(vllm_engine), ["lost/0"], range(2), {})
    vllm_engine.run(first)[0].unwrap()
    assert vllm_engine.rows(first[0].plan, 0, 4)[0].shape[2] == 4
    vllm_engine.run(second)[0].unwrap()
    with pytest.raises(StreamLostError, match="lost/0: the workers do not hold window 0"):
        vllm_engine.rows(first[0].plan, 0, 4)
    vllm_engine.close_stream("lost/0")
    with pytest.raises(StreamLostError):
        vllm_engine.rows(second[0].plan, 0, 4)
