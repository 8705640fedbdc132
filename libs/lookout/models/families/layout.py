"""The prompt layout of a checkpoint: from its chat template, or from its own `lookout_layout.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lookout.models.families.registry import UnknownFamilyError, family_of
from lookout.models.families.types import Family
from lookout.models.windows.layout import Layout
from lookout.models.windows.types import NEWLINE, LabelStyle, WindowError
from lookout.text import clean

LAYOUT_FILE = "lookout_layout.json"
_QUESTION = "lookout-question-goes-here"

#: exception of the tokenizers library's Rust code; it does not derive from `Exception`, and its class cannot
#: be imported
PANIC = "PanicException"
_THOUGHT = re.compile(r"<([A-Za-z_]*(?:think|thought|reason)[A-Za-z_]*)>")

Encode = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LayoutText:
    """A layout as strings, before it is tokenised: the fields of `lookout_layout.json`."""

    prefix: str = ""
    frame_open: str = ""
    frame_close: str = ""
    question_head: str = ""
    question_tail: str = ""
    yes: str = "Yes"
    no: str = "No"
    label: dict[str, Any] | None = None


def load_layout(checkpoint: Path | str) -> Layout:
    """Load the prompt layout of a checkpoint folder. `lookout_layout.json` takes precedence over the chat
    template.

    Raises:
        WindowError: The family has no layout, or the folder has no usable tokenizer or chat template.
    """
    folder = Path(checkpoint)
    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    own = folder / LAYOUT_FILE
    if own.is_file():
        text = _own_text(own)
    else:
        text = _template_text(family_of(config["model_type"]), tokenizer, folder)

    def encode(part: str) -> tuple[int, ...]:
        return tuple(tokens_of(tokenizer, part, folder, add_special_tokens=False))

    layout = build_layout(config, text, encode)
    # If the tokenizer puts a token before every text (BOS), the stock prompt also begins with it.
    opening = tokens_of(tokenizer, "", folder)[:1]
    if opening and opening[0] == tokenizer.bos_token_id and not text.prefix.startswith(tokenizer.bos_token):
        return replace(layout, prefix=(opening[0], *layout.prefix))
    return layout


def load_tokenizer(folder: Path) -> Any:
    """Load the checkpoint's tokenizer with transformers.

    Raises:
        WindowError: The tokenizer is missing or cannot be used.
    """
    from transformers import AutoTokenizer

    with _as_window_error(folder, "its tokenizer cannot be used"):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def tokens_of(tokenizer: Any, text: str, folder: Path, **options: Any) -> list[int]:
    """Return a text's tokens.

    Raises:
        WindowError: The tokenizer fails on the text.
    """
    with _as_window_error(folder, "its tokenizer fails on a text"):
        return [int(token) for token in tokenizer.encode(text, **options)]


def rendered_prompts(folder: Path) -> list[str]:
    """Return the prompt as each of a checkpoint's chat templates renders it, each tokenised as a check.

    Raises:
        WindowError: A template or the tokenizer fails.
    """
    tokenizer = load_tokenizer(folder)
    templates = {tokenizer.chat_template, _processor_template(folder)}
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates.add(path.read_text())
    prompts = [_rendered(tokenizer, template, folder) for template in templates if isinstance(template, str)]
    for prompt in prompts:
        tokens_of(tokenizer, prompt, folder)
    return prompts


def _rendered(tokenizer: Any, template: str | None, folder: Path) -> str:
    content = [{"type": "video"}, {"type": "text", "text": _QUESTION}]
    with _as_window_error(folder, "its chat template fails"):
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        )


@contextmanager
def _as_window_error(folder: Path, what: str) -> Iterator[None]:
    """Turn any exception that a folder's files cause into a `WindowError`. Templates are programs and
    tokenizers are lists of patterns, so they can raise anything.

    Raises:
        WindowError: Any exception occurred, except running out of memory. The tokenizers library raises bare
            `Exception` and, for a pattern that needs too many steps, a class that does not derive from it;
            transformers may raise any class.
    """
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise WindowError(f"{folder}: {what}: {clean(error, 300)}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read the checkpoint's `config.json`.

    The language model's settings are under `text_config`, even if the file has them at the top level (as
    published Qwen2.5-VL files do).

    Raises:
        WindowError: There is no such file, or its family is unknown.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise WindowError(f"{folder} is not a checkpoint folder: it has no config.json")
    config: dict[str, Any] = json.loads(path.read_text())
    try:
        family_of(config.get("model_type"))
    except UnknownFamilyError as error:
        raise WindowError(f"{folder}: {error}") from error
    return config if "text_config" in config else {**config, "text_config": config}


def build_layout(config: dict[str, Any], text: LayoutText, encode: Encode) -> Layout:
    """Tokenise a layout's strings for a checkpoint configuration.

    Raises:
        WindowError: The answers are not one token each, or are the same token.
    """
    family = family_of(config["model_type"])
    yes, no = _single(encode, text.yes), _single(encode, text.no)
    if yes == no:
        raise WindowError(
            f"the tokenizer has the same token for the answers {text.yes!r} and {text.no!r}: choose two "
            f"others as yes and no in {LAYOUT_FILE}"
        )
    numbers: dict[str, Any] = config["text_config"]
    head = before_words(encode, text.question_head)
    stop = numbers.get("eos_token_id")
    stops = (stop,) if isinstance(stop, int) else tuple(stop or ())
    return Layout(
        family=family.name,
        prefix=encode(text.prefix),
        frame_open=encode(text.frame_open),
        frame_close=encode(text.frame_close),
        question_head=(NEWLINE, *head) if family.prompt.newline else head,
        question_tail=encode(text.question_tail),
        yes=yes,
        no=no,
        positions=family.positions(config),
        layers=int(numbers["num_hidden_layers"]),
        label=None if text.label is None else label_style(text.label, encode),
        stop=stops,
    )


def before_words(encode: Encode, text: str) -> tuple[int, ...]:
    """Tokenise a text as it is tokenised before a word. Several newlines may be one token at the end of a
    text, but are several tokens before a word."""
    return encode(f"{text}A")[:-1] if text.endswith("\n") else encode(text)


def label_style(text: dict[str, Any], encode: Encode) -> LabelStyle:
    """Build a label style from its strings: counts, head, width, point, tail."""
    digits = tuple(encode(str(digit))[-1] for digit in range(10))
    counts = text.get("counts", "frames")
    if counts not in ("frames", "seconds", "clock"):
        raise WindowError(f"label counts {counts!r}: expected 'frames', 'seconds' or 'clock'")
    return LabelStyle(
        counts=counts,
        digits=digits,
        width=int(text.get("width", 3)),
        head=encode(str(text.get("head", ""))),
        point=encode(str(text.get("point", ""))),
        tail=encode(str(text.get("tail", ""))),
    )


def _single(encode: Encode, word: str) -> int:
    ids = encode(word)
    if len(ids) != 1:
        raise WindowError(
            f"the answer {word!r} is {len(ids)} tokens of the tokenizer, but p(yes) is read from one: "
            f"choose others as yes and no in {LAYOUT_FILE}"
        )
    return ids[0]


def close_thought(prompt: str) -> str:
    """Close a thought that a prompt leaves open at its end, as the templates of "thinking" checkpoints do.

    p(yes) is read where the prompt ends, and within a thought the model is not answering yet. So an empty
    thought is closed, as in Qwen3's template for answers without thinking.
    """
    for opened in [*_THOUGHT.finditer(prompt)][-1:]:
        if f"</{opened[1]}>" not in prompt[opened.end() :]:
            return f"{prompt.rstrip()}\n\n</{opened[1]}>\n\n"
    return prompt


def _own_text(path: Path) -> LayoutText:
    try:
        text = LayoutText(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError) as error:
        raise WindowError(f"{path}: not a prompt layout: {error}") from error
    if close_thought(text.question_tail) != text.question_tail:
        raise WindowError(f"{path}: question_tail leaves a thought open: close it before the answer")
    return text


def _processor_template(folder: Path) -> str | None:
    """Return the chat template of a folder whose tokenizer has none, because published folders keep the
    processor's template in a separate file."""
    path = folder / "chat_template.json"
    if not path.is_file():
        return None
    template = json.loads(path.read_text()).get("chat_template")
    return template if isinstance(template, str) else None


def _template_text(family: Family, tokenizer: Any, folder: Path) -> LayoutText:
    prompt = family.prompt
    template = family.video_template() or tokenizer.chat_template or _processor_template(folder)
    if not template:
        raise WindowError(f"{folder} has no chat template: add one, or a {LAYOUT_FILE}")
    prefix, video, remainder = _rendered(tokenizer, template, folder).partition(prompt.video)
    head, question, tail = remainder.partition(_QUESTION)
    if not video or not question:
        raise WindowError(f"{folder}: the chat template does not put {prompt.video!r} before the question")
    return LayoutText(
        prefix=prefix + prompt.before,
        frame_open=prompt.frame_open,
        frame_close=prompt.frame_close,
        question_head=prompt.after + head,
        question_tail=close_thought(tail),
        yes=prompt.answers[0],
        no=prompt.answers[1],
        label=None if prompt.label is None else dict(prompt.label),
    )
