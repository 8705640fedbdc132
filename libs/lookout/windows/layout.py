"""The prompt layout of a checkpoint: from its chat template, or from its own `lookout_layout.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lookout.windows.types import NEWLINE, LabelStyle, Layout, PositionRule, WindowError

LAYOUT_FILE = "lookout_layout.json"
FAMILIES = ("internvl", "qwen2_5_vl", "qwen3_vl", "llava_onevision")
_QUESTION = "lookout-question-goes-here"

Encode = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LayoutText:
    """A layout as strings, before tokenisation; the fields of `lookout_layout.json`."""

    prefix: str = ""
    frame_open: str = ""
    frame_close: str = ""
    question_head: str = ""
    question_tail: str = ""
    yes: str = "Yes"
    no: str = "No"
    label: dict[str, Any] | None = None


def load_layout(checkpoint: Path | str) -> Layout:
    """The layout of a checkpoint folder. `lookout_layout.json` wins over the chat template.

    Raises:
        WindowError: For a family without a layout, or a folder without tokenizer or chat template.
    """
    from transformers import AutoTokenizer

    folder = Path(checkpoint)
    config = read_config(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    own = folder / LAYOUT_FILE
    if own.is_file():
        text = _own_text(own)
    else:
        text = _template_text(str(config["model_type"]), tokenizer, folder)

    def encode(part: str) -> tuple[int, ...]:
        return tuple(int(i) for i in tokenizer.encode(part, add_special_tokens=False))

    return build_layout(config, text, encode)


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's `config.json`.

    Its language model stands under `text_config`, also where the folder has it at the top level (Qwen2.5-VL
    as published).

    Raises:
        WindowError: There is no such file, or its family is not known.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise WindowError(f"{folder} is not a checkpoint folder: it has no config.json")
    config: dict[str, Any] = json.loads(path.read_text())
    if config.get("model_type") not in FAMILIES:
        raise WindowError(
            f"{folder}: model_type {config.get('model_type')!r} has no prompt layout; known: "
            + ", ".join(FAMILIES)
        )
    return config if "text_config" in config else {**config, "text_config": config}


def build_layout(config: dict[str, Any], text: LayoutText, encode: Encode) -> Layout:
    """Tokenise a layout's strings for a checkpoint configuration."""
    family = str(config["model_type"])
    numbers: dict[str, Any] = config["text_config"]
    head = encode(text.question_head)
    stop = numbers.get("eos_token_id")
    stops = (stop,) if isinstance(stop, int) else tuple(stop or ())
    return Layout(
        family=family,
        prefix=encode(text.prefix),
        frame_open=encode(text.frame_open),
        frame_close=encode(text.frame_close),
        question_head=(NEWLINE, *head) if family == "llava_onevision" else head,
        question_tail=encode(text.question_tail),
        yes=_first(encode, text.yes),
        no=_first(encode, text.no),
        positions=position_rule(config),
        layers=int(numbers["num_hidden_layers"]),
        label=None if text.label is None else label_style(text.label, encode),
        stop=stops,
    )


def position_rule(config: dict[str, Any]) -> PositionRule:
    """How the checkpoint numbers positions, and how far it can count."""
    family = str(config["model_type"])
    kind: Literal["linear", "qwen2_5_vl", "qwen3_vl"] = "linear"
    ticks = 0.0
    if family == "qwen2_5_vl":
        kind, ticks = "qwen2_5_vl", float(config.get("vision_config", {}).get("tokens_per_second", 4))
    elif family == "qwen3_vl":
        kind = "qwen3_vl"
    return PositionRule(kind, int(config["text_config"].get("max_position_embeddings", 32768)), ticks)


def label_style(text: dict[str, Any], encode: Encode) -> LabelStyle:
    """A label style from its strings: counts, head, width, point, tail."""
    digits = tuple(encode(str(digit))[-1] for digit in range(10))
    counts = text.get("counts", "frames")
    if counts not in ("frames", "seconds"):
        raise WindowError(f"label counts {counts!r}: expected 'frames' or 'seconds'")
    return LabelStyle(
        counts=counts,
        digits=digits,
        width=int(text.get("width", 3)),
        head=encode(str(text.get("head", ""))),
        point=encode(str(text.get("point", ""))),
        tail=encode(str(text.get("tail", ""))),
    )


def _first(encode: Encode, word: str) -> int:
    ids = encode(word)
    if not ids:
        raise WindowError(f"the tokenizer has no token for the answer {word!r}")
    return ids[0]


def _own_text(path: Path) -> LayoutText:
    try:
        return LayoutText(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError) as error:
        raise WindowError(f"{path}: not a prompt layout: {error}") from error


def _processor_template(folder: Path) -> str | None:
    """The chat template of a folder whose tokenizer has none: published folders keep the
    processor's in a file of its own."""
    path = folder / "chat_template.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text()).get("chat_template")
    return found if isinstance(found, str) else None


def _template_text(family: str, tokenizer: Any, folder: Path) -> LayoutText:
    content = [{"type": "video"}, {"type": "text", "text": _QUESTION}]
    template = tokenizer.chat_template or _processor_template(folder)
    if not template:
        raise WindowError(f"{folder} has no chat template; add one, or a {LAYOUT_FILE}")
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
    )
    video = {
        "internvl": "<video>\n",
        "llava_onevision": "<video>",
        "qwen2_5_vl": "<|video_pad|>",
        "qwen3_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    }[family]
    prefix, found, rest = str(shown).partition(video)
    head, asked, tail = rest.partition(_QUESTION)
    if not found or not asked:
        raise WindowError(f"{folder}: the chat template shows no {video!r} before the question")
    text = LayoutText(prefix=prefix, question_head=head, question_tail=tail)
    return _with_frames(family, text)


def _with_frames(family: str, text: LayoutText) -> LayoutText:
    """What each family's processor writes around a frame, with labels of fixed width."""
    around = {"prefix": text.prefix, "question_head": text.question_head, "question_tail": text.question_tail}
    if family == "internvl":
        label = {"counts": "frames", "head": "Frame", "width": 3, "tail": ": "}
        return LayoutText(frame_open="<img>", frame_close="</img>\n", label=label, **around)
    if family == "qwen3_vl":
        label = {"counts": "seconds", "head": "<", "width": 3, "point": ".", "tail": " seconds>"}
        return LayoutText(frame_open="<|vision_start|>", frame_close="<|vision_end|>", label=label, **around)
    return text
