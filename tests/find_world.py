"""A small rendered world to search: cameras with known moments, their records, chapters and exact answers.

Frames are drawn at the model's input and pruned by their luma: nothing is encoded or decoded. Everything else
is what the services do: stride blocks, windows in chains, verdicts, born KV in chapters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch

from bench.memory.streams import KINDS, _cast
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.models.digest import folder_digest
from lookout.models.engines import Question, load_engine
from lookout.models.engines.born import born_block, prefix_of
from lookout.models.engines.transformers import TransformersEngine
from lookout.models.engines.transformers.memory import ask_many
from lookout.models.engines.transformers.memory.queries import question_queries
from lookout.models.families import load_tower
from lookout.models.vision import FrameInput, Tower
from lookout.models.windows import Planner, StrideBlock
from lookout.past.backtests import PastWindows
from lookout.past.chapters.service import is_meant
from lookout.past.find.finding import SpanAnswer
from lookout.past.find.spans import PastSpan
from lookout.past.memory import HistoryError, Keep, MemorySettings, Past, RangeCache
from lookout.past.memory.chapters import Born, ChapterFolder, ChapterRules
from lookout.past.memory.past import fetch_from
from lookout.past.memory.ranking import CameraPast, landmarks_of
from lookout.pruning import PrunePolicy, Sample
from lookout.rules.types import Zone
from lookout.runtime.worker import load_settings
from lookout.services.prefill.settings import PrefillSettings
from lookout.streams import ChainRule, ChainRunner, StreamBlock, stream_blocks
from lookout.streams.blocks import StrideFrame
from lookout.streams.chain import EngineAnswers
from lookout.streams.chains import EpochRecords
from lookout.streams.chains.verdicts import WindowTime, answered
from lookout.v1 import tokens_pb2
from lookout.v1.tokens_pb2 import BlockFrame, TemporalPatch, TokensRecord
from lookout.v1.watches_pb2 import Rule, Watch
from lookout.video.motion import Basis, pack_mask
from watchbench import cameras, drawing
from watchbench.cameras import Script

START_US = 1_700_000_000_000_000
SIZE, MINUTE_S = 112, 60
QUESTIONS = [Question(name, text) for name, text in DEMO_QUESTIONS.items()]
WATCHED = Watch(id="person", version=1, question=DEMO_QUESTIONS["person"], rule=Rule(threshold=0.5))


_CHOSEN: Final[list[Path]] = []


def answer_with(folder: Path) -> None:
    """Let a checkpoint answer instead of the tiny model, in every world from now on."""
    _CHOSEN[:] = [folder]
    for cached in (settings, engine, tower, digest):
        cached.cache_clear()


def model() -> Path:
    """The checkpoint that answers."""
    return next(iter(_CHOSEN), TINY)


@cache
def settings() -> PrefillSettings:
    """How its windows are planned."""
    return load_settings(PrefillSettings, {}, mode="local", model_dir=model())


@cache
def engine() -> TransformersEngine:
    """Its engine."""
    loaded = load_engine(model(), dtype="float32")
    assert isinstance(loaded, TransformersEngine)
    return loaded


@cache
def tower() -> Tower:
    """Its vision tower."""
    return load_tower(model(), dtype="float32")


@cache
def digest() -> str:
    """Its digest."""
    return folder_digest(model())


def planner() -> Planner:
    """Plans windows as prefill does."""
    return Planner(engine().layout, settings().windows)


@dataclass(frozen=True)
class Spec:
    """A camera to film: the kind of its scene, a seed, its minutes, and what happens in some of them."""

    camera: str
    kind: str
    seed: int
    minutes: int
    events: Mapping[int, str]


@dataclass
class Filmed:
    """A camera as the fleet saw it.

    Attributes:
        epoch: Its records.
        blocks: By index.
        p_yes: Of each demo question in every window: what asking every window says.
        flops: Of the language model by window, with one question; `vision` of the tower by block.
        computed: Blocks that were loaded since.
    """

    spec: Spec
    epoch: EpochRecords
    blocks: dict[int, StrideBlock] = field(default_factory=dict)
    p_yes: dict[str, dict[int, float]] = field(default_factory=dict)
    flops: dict[int, int] = field(default_factory=dict)
    vision: dict[int, int] = field(default_factory=dict)

    @property
    def begin_us(self) -> int:
        """When it was filmed."""
        return next(iter(self.epoch.blocks.values())).wall_offset_us


class World:
    """Cameras, and a folder with their chapters.

    Args:
        root: Of the chapters.
        rules: How long they become.
    """

    def __init__(self, root: Path, rules: ChapterRules | None = None) -> None:
        self.cameras: dict[str, Filmed] = {}
        self.loaded: Counter[str] = Counter()
        self.folder = ChapterFolder(
            root,
            rules or ChapterRules(Keep(seconds=1e12)),
            engine().kv_shape,
            settings=MemorySettings(window=settings().window_blocks),
            bias=engine().key_bias,
            about={"model_digest": digest(), "stride_us": settings().stride_us},
        )

    def film(self, spec: Spec, *, remembered: range | None = None, watched: bool = True) -> Filmed:
        """Play a camera through windows that ask every demo question.

        Args:
            spec: The camera.
            remembered: Windows whose blocks enter a chapter; None: all.
            watched: Whether there are verdicts.
        """
        epoch = EpochRecords(spec.camera, 1000 + spec.seed)
        filmed = self.cameras[spec.camera] = Filmed(spec, epoch)
        runner = ChainRunner(ChainRule(planner()), EngineAnswers(engine()))
        chain, window = runner.rule.begin(), []
        for stream_block in _blocks(spec, epoch.stream):
            block, index = stream_block.block, stream_block.block.index
            filmed.blocks[index] = block
            record = epoch.blocks[index] = _record(spec, epoch, stream_block)
            filmed.vision[index] = record.block.flops_vision
            window = [*window, block][-settings().window_blocks :]
            asked = runner.ask(chain, window, QUESTIONS)
            span = WindowTime(
                spec.camera,
                epoch.epoch,
                START_US,
                index,
                window[0].index * settings().stride_us,
                record.block.end_us,
            )
            records = [epoch.blocks[member.index].block for member in window]
            for question, answer in zip(QUESTIONS, asked.answer.answers, strict=True):
                filmed.p_yes.setdefault(question.id, {})[index] = answer.p_yes
                if question.id == WATCHED.id:
                    verdict = answered(span, WATCHED, asked, answer, blocks=records)
                    verdict.model_digest = digest()
                    filmed.flops[index] = verdict.cost.flops_prefill + verdict.cost.flops_question
                    if watched:
                        epoch.verdicts[index].append(verdict)
            if watched and (remembered is None or index in remembered):
                born = born_block(engine(), asked.plan, block, frame_us=settings().step_us)
                prefix = prefix_of(engine(), asked.plan)
                self.folder.add(Born(spec.camera, epoch.epoch, born, prefix, START_US))
        runner.forget(epoch.stream)
        return filmed

    def load(self, record: TokensRecord) -> StrideBlock:
        """The block of a record; counted."""
        self.loaded[record.camera] += 1
        return self.cameras[record.camera].blocks[record.block.index]


def _blocks(spec: Spec, stream: str) -> Iterator[StreamBlock]:
    return stream_blocks(
        stream,
        pictures_of(spec),
        tower(),
        PrunePolicy(),
        samples=settings().block_samples,
        step_us=settings().step_us,
        window_blocks=settings().window_blocks,
    )


def pictures_of(spec: Spec) -> Iterator[StrideFrame]:
    """What a camera films, frame by frame."""
    step_s = settings().step_us / 1e6
    count = round(MINUTE_S / step_s)
    tall, horizon = KINDS[spec.kind]
    backdrop: torch.Tensor | None = None
    for minute in range(spec.minutes):
        draw = np.random.default_rng([spec.seed, minute])
        people, vehicles = _cast(spec.events.get(minute, ""), draw)
        scene = cameras.scripted(Script(spec.kind, MINUTE_S, spec.seed, tall, horizon, people, vehicles))
        scene.objects["there"][:, 1:] = False
        if backdrop is None:
            backdrop = drawing.background(scene, SIZE)
        noisy = replace(scene, seed=spec.seed * 7919 + minute)
        drawn = drawing.render(noisy, torch.arange(count) * step_s, SIZE, backdrop=backdrop)[0]
        for number, pixels in enumerate(drawn.mul(255).add(0.5).byte().numpy()):
            slot = minute * count + number
            yield StrideFrame(Sample(pixels, Basis.LUMA), slot * settings().step_us, slot)


def _record(spec: Spec, epoch: EpochRecords, made: StreamBlock) -> TokensRecord:
    """What prune-encode writes of a block, without a reference to its tokens."""
    block, stride_us = made.block, settings().stride_us
    grid = tower().grid
    out = tokens_pb2.StrideBlock(
        index=block.index,
        start_us=block.index * stride_us,
        end_us=(block.index + 1) * stride_us,
        group_rows=grid.group_rows,
        group_cols=grid.group_cols,
        model_digest=digest(),
    )
    pixels = np.zeros((1, SIZE, SIZE, 3), np.uint8)
    for number, frame in enumerate(block.frames):
        sample = round(frame.time_us / settings().step_us)
        out.frames.append(BlockFrame(time_us=frame.time_us, sample=sample, row=number))
        kept = int(frame.keep.sum())
        out.patches.append(
            TemporalPatch(frames=[number], anchor=frame.anchor, keep=pack_mask(frame.keep), kept=kept)
        )
        out.patches_encoded += 4 * kept
        out.patches_total += 4 * frame.keep.size
        out.flops_vision += tower().flops([FrameInput(pixels, frame.keep)])
        out.flops_vision_dense += tower().flops([FrameInput(pixels, np.ones_like(frame.keep))])
    return TokensRecord(camera=spec.camera, epoch=epoch.epoch, wall_offset_us=START_US, block=out)


def moved_part(block: StrideBlock) -> Zone | None:
    """The smallest box around all tokens of a block that pruning kept; None: nothing moved."""
    frames = [frame for frame in block.frames if not frame.anchor and frame.keep.any()]
    if not frames:
        return None
    rows, cols = np.nonzero(np.logical_or.reduce([frame.keep for frame in frames]))
    height, width = frames[0].keep.shape
    left, right = cols.min() / width, (cols.max() + 1) / width
    top, bottom = rows.min() / height, (rows.max() + 1) / height
    return Zone(((left, top), (right, top), (right, bottom), (left, bottom)))


def moments(p_yes: Mapping[int, float], threshold: float = 0.5) -> list[tuple[int, int]]:
    """Runs of windows with p(yes) at or above a threshold: first and last."""
    runs: list[tuple[int, int]] = []
    for window in sorted(index for index, p in p_yes.items() if p >= threshold):
        if runs and window == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], window
        else:
            runs.append((window, window))
    return runs


class FolderMemory:
    """The memory of a world, read from its folder in this process.

    Attributes:
        lost: Cameras of which no chapter can be read.
        calls: Spans that were asked.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.lost: set[str] = set()
        self.calls: list[PastSpan] = []
        self._cache = RangeCache(lambda requests: [], 64 << 20)

    def pasts(self, cameras: Sequence[str]) -> tuple[dict[str, CameraPast], list[str]]:
        """The cameras that match."""
        out: dict[str, CameraPast] = {}
        for facts in self._world.folder.chapters():
            if any(is_meant(facts.camera, pattern) for pattern in cameras):
                past = out.setdefault(facts.camera, CameraPast())
                past.chapters.append((facts.begin_us, facts.end_us))
                past.landmarks.append(landmarks_of(*self._world.folder.read(facts.name)))
        return out, []

    def queries(self, question: str) -> torch.Tensor:
        """What the question looks for."""
        return question_queries(engine(), question)

    def compared(self, keys: torch.Tensor) -> torch.Tensor:
        """The keys themselves: landmarks have all layers' keys."""
        return keys

    def ask(self, spans: Sequence[PastSpan], question: str) -> list[SpanAnswer]:
        """The answer over each span."""
        self.calls += spans
        out: list[SpanAnswer] = []
        for span in spans:
            if span.camera in self.lost:
                out.append(SpanAnswer(missing="no holder has it"))
                continue
            reading = [
                self._world.folder.read(facts.name) for facts in self._world.folder.chapters(span.camera)
            ]
            fetch = fetch_from({chapter.name: files for chapter, files in reading})
            chapters = [chapter for chapter, _ in reading]
            try:
                past = Past(chapters, self._cache, fetch=fetch, since_us=span.begin_us, until_us=span.end_us)
                (answer,) = ask_many(engine(), [past], question)
            except HistoryError as error:
                answer = error
            if isinstance(answer, HistoryError):
                out.append(SpanAnswer(missing=str(answer)))
            else:
                out.append(SpanAnswer(answer.p_yes, answer.cost.flops, past.traffic.fetched_bytes))
        return out


class WorldRecords:
    """What Kafka would hold of a world. `gone`: cameras whose records are past their retention."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.gone: set[str] = set()

    def near(self, camera: str, begin_ms: int, end_ms: int) -> list[EpochRecords]:
        """The whole epoch: more than is needed."""
        return [] if camera in self.gone else [self._world.cameras[camera].epoch]

    def all(self, cameras: Sequence[str], since_ms: int, until_ms: int) -> list[EpochRecords] | str:
        """Those of the cameras that match."""
        return [
            filmed.epoch
            for camera, filmed in self._world.cameras.items()
            if camera not in self.gone and any(is_meant(camera, pattern) for pattern in cameras)
        ]


def past_windows(world: World) -> PastWindows:
    """Computes windows of a world as a back-test does."""
    return PastWindows(settings(), engine(), planner(), world.load, digest())
