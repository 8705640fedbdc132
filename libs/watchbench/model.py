"""The tiny vision-language model: InternVL's architecture at toy size, as a stock transformers checkpoint.

Pixels are 112 x 112, patches 14 x 14, and pixel shuffle gives 16 tokens a frame. The prompt
(``lookout_layout.json`` in the checkpoint) is the prefix, then each frame as ``FrameNNN <img>`` 16 tokens
``</img>``, then the question and the answer cue.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lookout.models import TINY
from lookout.models.completeness import check_loaded
from watchbench import qwen
from watchbench.questions import QUESTIONS
from watchbench.shape import Shape

SIZE, PATCH, CELLS, TOKENS = 112, 14, 4, 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABELS = 1000
STEP_S = 0.5
BUCKETS = 6  # into how many batches frames are split when patches are left out
IMAGE_TOKEN = "<IMG_CONTEXT>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", IMAGE_TOKEN, "<video>", "<unk>")
PREFIX, TAIL = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
FRAME_OPEN, FRAME_CLOSE = "<img>", "</img>\n"
YES, NO = "Yes", "No"
SPLIT = r"<\|?/?\w+\|?>|\d|[A-Za-z]+|[^\w\s]"
SPARE_WORDS = (
    "user assistant system picture empty a an the in on of at is are was were there here now earlier it "
    "this that camera any anyone anybody someone people person man woman child car van truck vehicle "
    "bag box object suitcase floor ground lying standing walking running sitting fallen many few two "
    "three no nobody and or with door room road shelf scene "
)


@lru_cache(maxsize=1)
def _table() -> dict[str, int]:
    table = vocabulary()
    return table | {name: table[own] for own, name in qwen.NAMES.items()}


@dataclass(frozen=True, slots=True)
class Form:
    """How an architecture writes a window.

    Attributes:
        name: The ``model_type`` of its checkpoints.
        prefix: The text before the frames.
        open: Text before a frame's tokens, after its label; ``close`` follows them.
        head: Text before every question.
        labels: Whether frames are numbered, so that a row's position is its number.
        frames: Number of frames that one set of 16 tokens represents.
        label: A frame's number as text, a format of :func:`str.format`.
    """

    name: str
    prefix: str
    open: str
    close: str
    head: str
    labels: bool
    frames: int
    label: str = "Frame{:03d} "


INTERNVL = Form("internvl", PREFIX, FRAME_OPEN, FRAME_CLOSE, "", labels=True, frames=1)
QWEN = Form(
    "qwen2_5_vl", PREFIX + "<|vision_start|>", "", "", "<|vision_end|>", labels=False, frames=qwen.PAIR
)
SMOL = Form("internvl", PREFIX, ":", "\n", "", labels=True, frames=1, label="{:03d}")
"""The form of :mod:`watchbench.smol`: its tokenizer has a token for each digit and none for `<img>`."""
FORMS = {form.name: form for form in (INTERNVL, QWEN)}


@dataclass(frozen=True, slots=True)
class Words:
    """How a model reads text.

    Attributes:
        form: How it writes a window.
        encode: Token ids of a text, without those that a tokenizer adds.
        yes: The token of the answer yes.
        no: The token of the answer no.
    """

    form: Form
    encode: Callable[[str], Sequence[int]]
    yes: int
    no: int


def words_of(model: Any) -> Words:
    """Return how a model reads text: its attribute `words`, if it has a vocabulary other than the tiny
    model's.
    """
    own: Words | None = getattr(model, "words", None)
    table = _table()
    return own or Words(FORMS[model.config.model_type], encode, table[YES], table[NO])


def form_of(model: Any) -> Form:
    """Return how a model writes windows."""
    return words_of(model).form


def form_in(folder: Path) -> Form:
    """Return how the model of a checkpoint folder writes windows."""
    return FORMS[json.loads((folder / "config.json").read_text())["model_type"]]


def eye(model: Any) -> tuple[nn.Module, ...]:
    """Return the parts that turn pixels into tokens: tower and projector."""
    inner = model.model
    if form_of(model) is QWEN:
        return (inner.visual,)
    return inner.vision_tower, inner.multi_modal_projector


def words(text: str) -> list[str]:
    """Split a text as the tokenizer does: special tokens, words, single digits, punctuation."""
    return re.findall(SPLIT, text)


def vocabulary() -> dict[str, int]:
    """Token ids: special tokens, answers, the parts of labels, then the words of every question."""
    tokens = [*SPECIAL, YES, NO, "Frame", *"0123456789"]
    for text in (SPARE_WORDS, *(w for question in QUESTIONS for w in question.wordings)):
        tokens += [word for word in words(text) if word not in tokens]
        tokens += [word.capitalize() for word in words(text) if word.capitalize() not in tokens]
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def encode(text: str) -> list[int]:
    """Token ids of a text, equal to those of the saved tokenizer."""
    table = _table()
    return [table.get(word, table["<unk>"]) for word in words(text)]


def _text_config(s: Shape, table: dict[str, int]) -> dict[str, Any]:
    """The language model's configuration in either architecture."""
    return {
        "vocab_size": (len(table) + 63) // 64 * 64,
        "hidden_size": s.text,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": s.text_layers,
        "num_attention_heads": s.text_heads,
        "num_key_value_heads": s.kv_heads,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": table["<|im_end|>"],
        "pad_token_id": 0,
    }


def build(shape: Shape | None = None, form: Form = INTERNVL) -> Any:
    """Build an untrained model of the stock class."""
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    s = shape or Shape()
    table = vocabulary()
    if form is QWEN:
        return qwen.build(s, _text_config(s, table), table)
    config = InternVLConfig(
        vision_config={
            "hidden_size": s.vision,
            "intermediate_size": 3 * s.vision,
            "num_hidden_layers": s.vision_layers,
            "num_attention_heads": s.vision // 32,
            "image_size": [SIZE, SIZE],
            "patch_size": [PATCH, PATCH],
            "use_mean_pooling": True,
            "norm_type": "layer_norm",
            "layer_scale_init_value": 1.0,
        },
        text_config={"model_type": "qwen2", **_text_config(s, table)},
        image_token_id=table[IMAGE_TOKEN],
        downsample_ratio=0.5,
        image_seq_length=TOKENS,
        tie_word_embeddings=True,
    )
    return InternVLForConditionalGeneration(config)


def patches(model: Any, pixels: Tensor, keep: Tensor | None = None) -> Tensor:
    """The tower's last states [frames, 64, width] for pixels [frames, 3, 112, 112] (RGB 0..1).

    ``keep`` bool [frames, 16]: token groups that are encoded. The patches of the others are left out, as the
    pruned tower never sees them; their rows of the result are meaningless.
    """
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    tower = model.model.vision_tower
    h = tower.embeddings((pixels - mean) / std)
    if keep is None:
        return _layers(tower, h, None)[:, 1:]
    grid = keep.view(-1, CELLS, CELLS).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)
    # Frames with similar numbers of patches are encoded together, padded to the longest.
    out = torch.zeros_like(h[:, 1:])
    for frames in grid.sum(1).argsort(descending=True).chunk(min(len(grid), BUCKETS)):
        count = int(grid[frames].sum(1).max())
        rows = (~grid[frames]).int().argsort(dim=1, stable=True)[:, :count]
        valid = grid[frames].gather(1, rows)
        valid = torch.cat([torch.ones_like(valid[:, :1]), valid], 1)
        padded = torch.cat([torch.zeros_like(rows[:, :1]), rows + 1], 1)
        part = h[frames].gather(1, padded[..., None].expand(-1, -1, h.shape[-1]))
        part = _layers(tower, part, valid[:, None, None].expand(-1, 1, count + 1, -1))[:, 1:]
        place = (frames[:, None] * out.shape[1] + rows).flatten()
        out = out.flatten(0, 1).index_copy(0, place, part.flatten(0, 1)).view_as(out)
    return out


def _layers(tower: Any, h: Tensor, mask: Tensor | None) -> Tensor:
    """Run the tower's layers on states [frames, rows, width]; ``mask`` bool: the rows that are seen."""
    for layer in tower.encoder.layer:
        h = h + layer.lambda_1 * layer.attention(layer.layernorm_before(h), mask)[0]
        h = h + layer.lambda_2 * layer.mlp(layer.layernorm_after(h))
    return tower.layernorm(h)  # type: ignore[no-any-return]


def shuffled(model: Any, states: Tensor) -> Tensor:
    """The projector's input [frames, 16, 4 * width] from the tower's states [frames, 64, width]."""
    side = SIZE // PATCH
    h: Tensor = model.model.pixel_shuffle(states.reshape(len(states), side, side, -1), scale_factor=0.5)
    return h.reshape(len(h), TOKENS, -1)


def gather(model: Any, states: Tensor) -> Tensor:
    """Tokens [frames, 16, hidden] from the tower's states [frames, 64, width]."""
    return model.model.multi_modal_projector(shuffled(model, states))  # type: ignore[no-any-return]


def see(model: Any, pixels: Tensor, keep: Tensor | None = None) -> Tensor:
    """Tokens [frames, 16, hidden] of pixels [frames, 3, 112, 112] (RGB 0..1); ``keep`` as in
    :func:`patches`.

    If the architecture sees frames in pairs, tokens and ``keep`` have one row for each pair.
    """
    if form_of(model) is QWEN:
        mean, std = (torch.tensor(part).view(3, 1, 1) for part in (MEAN, STD))
        return qwen.see(model.model.visual, qwen.paired((pixels - mean) / std), keep)
    return gather(model, patches(model, pixels, keep))


@lru_cache(maxsize=1)
def _split_attention() -> str:
    """Register attention in two parts, and return its name.

    Rows of the clip see all rows before them, without a mask (it is causal). Rows of questions see what the
    mask [B, 1, question rows, all] says. A mask of all rows is applied unchanged.
    """
    from transformers import AttentionInterface

    def attend(  # noqa: PLR0917
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        k, v = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (k, v))
        rows = q.shape[2] - mask.shape[2]
        sdpa = partial(torch.nn.functional.scaled_dot_product_attention, scale=scaling)
        if rows == 0:
            return sdpa(q, k, v, attn_mask=mask).transpose(1, 2).contiguous(), None
        clip = sdpa(q[:, :, :rows], k[:, :, :rows], v[:, :, :rows], is_causal=True)
        asked = sdpa(q[:, :, rows:], k, v, attn_mask=mask)
        return torch.cat([clip, asked], 2).transpose(1, 2).contiguous(), None

    AttentionInterface.register("watchbench_split", attend)
    return "watchbench_split"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question asked right after frame ``after`` of the clip."""

    text: str
    after: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Logits of every question, and states of the frames.

    ``answers`` has yes/no [B, questions, 2], ``words`` [B, questions, vocabulary]. ``frames`` has the states
    [B, T, hidden] of the token that closes each frame, after each of the layers asked for.
    """

    answers: Tensor
    words: Tensor
    frames: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The prompt of all frames.

    Attributes:
        ids: Its token ids.
        visual: The rows of visual tokens.
        ends: The row after each frame.
        part_of: The part of every row; -1: the prefix.
        position: The position of every row, [axes, rows].
        after: The position of a question after each frame.
    """

    ids: list[int]
    visual: list[int]
    ends: list[int]
    part_of: list[int]
    position: Tensor
    after: list[int]


def _frames_prompt(words: Words, parts: tuple[tuple[int, int], ...], per: int) -> _Prompt:
    form = words.form
    opening, closing = words.encode(form.open), words.encode(form.close)
    ids = list(words.encode(form.prefix))
    prefix = len(ids)
    visual: list[int] = []
    ends: list[int] = []
    part_of = [-1] * len(ids)
    for part, number in [(i, label + k) for i, (count, label) in enumerate(parts) for k in range(count)]:
        label = words.encode(form.label.format(number % LABELS)) if form.labels else []
        ids += [*label, *opening]
        visual += range(len(ids), len(ids) + per)
        ids += [*([0] * per), *closing]
        ends.append(len(ids))
        part_of += [part] * (len(ids) - len(part_of))
    if form.labels:
        return _Prompt(ids, visual, ends, part_of, torch.arange(len(ids))[None], ends)
    if len(parts) > 1:
        raise ValueError(f"{form.name} numbers all frames as one video: it reads no snippets")
    # All frames are one grid; the text after it starts after the largest position on any axis.
    ticks = torch.arange(len(ends)) * round(form.frames * STEP_S * qwen.TICKS)
    cell = torch.arange(per).repeat(len(ends))
    grid = torch.stack([ticks.repeat_interleave(per), cell // CELLS, cell % CELLS])
    position = torch.cat([torch.arange(prefix).expand(3, -1), prefix + grid], 1)
    after = [prefix + max(int(tick) + 1, CELLS) for tick in ticks]
    return _Prompt(ids, visual, ends, part_of, position, after)


def _within_parts(of_part: Tensor, row: Tensor, valid: Tensor) -> Tensor:
    """Return which rows of the frames attend to which others: bool [B, rows, rows]."""
    together = (of_part[:, :, None] == of_part[:, None]) | (of_part[:, None] == -1)
    # An invalid row attends to itself, so that no row of the softmax is empty.
    itself = torch.eye(of_part.shape[1], dtype=torch.bool)
    return (together & (row[:, None] <= row[:, :, None]) & valid[:, None]) | itself


def _positions(prompt: _Prompt, row: Tensor, asked: Tensor) -> Tensor:
    """Positions of rows [B, rows] and of the questions after them: [B, all], or [3, B, all] with
    three axes."""
    axes = prompt.position
    position = torch.cat([axes[:, row], asked.expand(len(axes), len(row), -1)], 2)
    return position if len(axes) > 1 else position[0]


def _rows(states: Tensor, which: Tensor) -> Tensor:
    """Select rows ``which`` [B, n] of states [B, rows, hidden]."""
    return states.gather(1, which[..., None].expand(-1, -1, states.shape[-1]))


def answer(  # noqa: PLR0917
    model: Any,
    tokens: Tensor,
    asked: list[Asked],
    keep: Tensor | None = None,
    first_label: int = 1,
    layers: tuple[int, ...] = (),
    parts: tuple[tuple[int, int], ...] = (),
) -> Reading:
    """Answer several questions, which do not attend to one another.

    ``tokens`` [B, T, 16, hidden]; ``keep`` bool [B, T, 16] drops tokens, whose positions stay unused.
    ``parts``: (frames, first label) of retrieved snippets and, last, of the window, T frames in all. A part
    sees itself and the prefix, as KV that was computed in another window does; questions see all parts.
    """
    b, t, per, _ = tokens.shape
    lm, words = model.model.language_model, words_of(model)
    prompt = _frames_prompt(words, parts or ((t, first_label),), per)
    place = torch.tensor(prompt.visual)
    h = lm.embed_tokens(torch.tensor(prompt.ids)).expand(b, -1, -1).clone()
    h[:, place] = tokens.reshape(b, t * per, -1).to(h.dtype)
    row = torch.arange(len(prompt.ids)).expand(b, -1)
    of_part = torch.tensor(prompt.part_of).expand(b, -1)
    valid = torch.ones(b, len(prompt.ids), dtype=torch.bool)
    if keep is not None:
        valid[:, place] = keep.reshape(b, -1)
        order = (~valid).int().argsort(dim=1, stable=True)[:, : int(valid.sum(1).max())]
        h = h.gather(1, order[..., None].expand(-1, -1, h.shape[-1]))
        row, valid = row.gather(1, order), valid.gather(1, order)
        of_part = of_part.gather(1, order)
    head, tail = words.encode(words.form.head), words.encode(TAIL)
    texts = [[*head, *words.encode(q.text), *tail] for q in asked]
    q_ids = torch.tensor([i for text in texts for i in text])
    of = [n for n, text in enumerate(texts) for _ in text]
    q_of = torch.tensor(of)
    ends, after = torch.tensor(prompt.ends), torch.tensor([asked[n].after for n in of])
    q_row = torch.tensor([i for text in texts for i in range(len(text))])
    last = torch.tensor([len(text) for text in texts]).cumsum(0) - 1
    past = (ends[after][None, :, None] > row[:, None]) & valid[:, None]
    own = (q_of[:, None] == q_of[None]) & (q_row[:, None] >= q_row[None])
    mask = torch.cat([past, own.expand(b, -1, -1)], 2)[:, None]
    if parts:
        within = _within_parts(of_part, row, valid)
        blind = torch.zeros(b, h.shape[1], len(q_ids), dtype=torch.bool)
        mask = torch.cat([torch.cat([within, blind], 2)[:, None], mask], 2)
    position = _positions(prompt, row, torch.tensor(prompt.after)[after] + q_row)
    usual, lm.config._attn_implementation = lm.config._attn_implementation, _split_attention()
    states = lm(
        inputs_embeds=torch.cat([h, lm.embed_tokens(q_ids).expand(b, -1, -1)], 1),
        attention_mask=mask,
        position_ids=position,
        use_cache=False,
        output_hidden_states=bool(layers),
    )
    lm.config._attn_implementation = usual
    logits = model.lm_head(states.last_hidden_state[:, h.shape[1] + last]).float()
    # A frame is read at its last row, or at the last row before it if all of it was dropped.
    closed = ((row[:, None] < ends[:, None]) & valid[:, None]).sum(2) - 1
    frames = tuple(_rows(states.hidden_states[layer], closed).float() for layer in layers)
    return Reading(logits[..., [words.yes, words.no]], logits, frames)


def layout(form: Form = INTERNVL) -> dict[str, object]:
    """Return the fields of ``lookout_layout.json``."""
    head, tail = form.label.split("{:03d}")
    return {
        "prefix": form.prefix,
        "frame_open": form.open,
        "frame_close": form.close,
        "question_head": form.head,
        "question_tail": TAIL,
        "yes": YES,
        "no": NO,
        "label": {"counts": "frames", "head": head, "width": 3, "tail": tail},
    }


def tokenizer(form: Form = INTERNVL) -> Any:
    """The stock fast tokenizer over :func:`vocabulary`."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = qwen.NAMES if form is QWEN else {}
    table = {names.get(word, word): row for word, row in vocabulary().items()}
    raw = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    raw.add_special_tokens(
        [AddedToken(names.get(token, token), special=True, normalized=False) for token in SPECIAL]
    )
    start, end, image = ("vision_start", "vision_end", "image") if names else _INTERNVL_ROLES
    roles = {f"{start}_token": "<img>", f"{end}_token": "</img>", f"{image}_token": IMAGE_TOKEN}
    roles["video_token"] = "<video>"
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={role: names.get(token, token) for role, token in roles.items()},
    )


_INTERNVL_ROLES = ("start_image", "end_image", "context_image")

CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% elif c['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save(model: Any, folder: Path, card: dict[str, object] | None = None) -> None:
    """Write a stock checkpoint folder: bf16 weights, tokenizer, image processor, layout."""
    folder.mkdir(parents=True, exist_ok=True)
    form = form_of(model)
    copy = build(shape_of(model), form)
    copy.load_state_dict({k: v.detach().float() for k, v in model.state_dict().items()})
    copy = copy.to(torch.bfloat16)
    copy.config.dtype = "bfloat16"
    copy.save_pretrained(folder)
    text, chat = tokenizer(form), CHAT
    if form is QWEN:
        for own, name in (("<IMG_CONTEXT>\n", "image_pad"), ("<video>\n", "video_pad")):
            chat = chat.replace(own, f"<|vision_start|><|{name}|><|vision_end|>")
    text.chat_template = chat
    text.save_pretrained(folder)
    inline = folder / "chat_template.jinja"
    inline.write_text(chat)
    if form is QWEN:  # its layout follows from its chat template
        qwen.save_processors(folder, MEAN, STD)
    else:
        save_processors(folder)
        (folder / "lookout_layout.json").write_text(json.dumps(layout(), indent=2) + "\n")
    (folder / "watchbench.json").write_text(json.dumps(card or {}, indent=2) + "\n")


def save_processors(folder: Path) -> None:
    """Write the files that InternVL's stock processors read."""
    processor = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "processor_class": "InternVLProcessor",
        "crop_to_patches": False,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(MEAN),
        "image_std": list(STD),
        "min_patches": 1,
        "max_patches": 1,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": SIZE, "width": SIZE},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n")
    video = processor | {"video_processor_type": "InternVLVideoProcessor", "initial_shift": True}
    video.pop("image_processor_type")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "InternVLProcessor", "image_seq_length": TOKENS}, indent=2) + "\n"
    )


def shape_of(model: Any) -> Shape:
    """The sizes of a model that :func:`build` made."""
    v, t = model.config.vision_config, model.config.text_config
    return Shape(
        v.hidden_size,
        v.depth if form_of(model) is QWEN else v.num_hidden_layers,
        t.hidden_size,
        t.num_hidden_layers,
        t.num_attention_heads,
        t.num_key_value_heads,
        t.intermediate_size,
    )


def load(folder: Path) -> Any:
    """Load a checkpoint folder as the stock class, in float32, ready to answer.

    Raises:
        lookout.models.ModelError: It lacks weights.
    """
    from transformers import AutoModelForImageTextToText

    model, report = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
    )
    check_loaded(folder, report["missing_keys"], model.named_parameters())
    return model.eval()


def inherited(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint folder as a state of :func:`build`'s model, from which training
    continues.

    Words are matched by their text, since the vocabulary may have grown. New words start as ``<unk>``.
    """
    old = load(folder)
    known: dict[str, int] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    state: dict[str, Tensor] = old.state_dict()
    fresh = build(shape_of(old), form_of(old)).state_dict()
    for name, value in state.items():
        if value.shape != fresh[name].shape or name.endswith(("embed_tokens.weight", "lm_head.weight")):
            names = qwen.NAMES if form_of(old) is QWEN else {}
            rows = torch.tensor([known.get(names.get(word, word), known["<unk>"]) for word in vocabulary()])
            fresh[name][: len(rows)] = value[rows]
        else:
            fresh[name] = value
    return dict(fresh)


def _folder(name: str) -> Path:
    """Return the folder of committed weights: those that ship with the product are in its package, others in
    this one.
    """
    return TINY if name == "tolerant" else Path(__file__).parent / "weights" / name


def weights(name: str = "tolerant") -> Path:
    """Return the folder of committed weights ``dense`` or ``tolerant``.

    Raises:
        FileNotFoundError: There are none with that name; the message lists those that exist.
    """
    folder = _folder(name)
    if not (folder / "model.safetensors").is_file():
        known = [each for each in ("dense", "tolerant") if (_folder(each) / "model.safetensors").is_file()]
        raise FileNotFoundError(f"no weights called {name!r}; there are: {', '.join(known) or 'none'}")
    return folder


def eye_digest(model: Any) -> str:
    """Hash of a model's vision tower and projector, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in eye(model):
        for name, value in sorted(part.state_dict().items()):
            digest.update(name.encode() + value.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def replace_weights(model: Any, name: str, card: dict[str, object]) -> Path:
    """Install a trained model as committed weights ``name``.

    Other files next to the old weights stay: `lookout_windows.json`, the windows that the model is meant for.
    """
    folder = _folder(name)
    fresh = folder.with_name(f".{name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    save(model, fresh, card | {"shape": asdict(shape_of(model))})
    for beside in folder.glob("*"):
        if not (fresh / beside.name).exists():
            shutil.copy2(beside, fresh / beside.name)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return folder
