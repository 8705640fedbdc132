"""What the glossary names in the code is there, under that name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lookout import v1
from lookout.runtime.worker import ServiceSettings

ROWS = [
    (cells[1].strip(), name)
    for line in (Path(__file__).parents[3] / "docs/glossary.md").read_text().splitlines()
    if len(cells := line.split("|")) == 5
    for name in re.findall(r"`([^`]+)`", cells[3])
]
MESSAGES = (
    "lineage_pb2",
    "frames_pb2",
    "tokens_pb2",
    "verdicts_pb2",
    "alerts_pb2",
    "watches_pb2",
    "state_pb2",
)


def _below(thing: object, names: list[str]) -> bool:
    for name in names:
        fields = getattr(thing, "__dataclass_fields__", {}) or getattr(thing, "__annotations__", {})
        if name in fields or name in getattr(getattr(thing, "DESCRIPTOR", None), "fields_by_name", {}):
            return True
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


def _is_there(name: str) -> bool:
    first, *rest = name.split(".")
    for module in MESSAGES:
        messages = importlib.import_module(f"{v1.__name__}.{module}")
        if _below(messages, [first, *rest]):
            return True
    for depth in range(len(rest), -1, -1):
        try:
            module_found = importlib.import_module(".".join(["lookout", first, *rest[:depth]]))
        except ImportError:
            continue
        return _below(module_found, rest[depth:])
    homes = (
        "models.windows",
        "pruning",
        "models.vision",
        "video.motion",
        "video.segments",
        "video.files",
        "video.sandbox",
        "models.engines",
        "rules",
        "runtime.worker",
        "runtime.store",
    )
    return any(_below(importlib.import_module(f"lookout.{home}"), [first, *rest]) for home in homes)


@pytest.mark.parametrize(("word", "name"), ROWS)
def test_a_name_in_the_glossary_is_in_the_code(word: str, name: str) -> None:
    if name.startswith("LOOKOUT_"):
        assert name.removeprefix("LOOKOUT_").lower() in ServiceSettings.model_fields
    elif re.fullmatch(r"[a-z]+(\.[a-z]+)*\.v1|<topic>\.dlq", name):
        from lookout.wire import all_topics

        assert name.startswith("<") or name in {topic.name for topic in all_topics()}
    elif name.startswith("lookout "):
        assert name.split()[1] in {"coverage", "watch", "alerts"}
    elif re.fullmatch(r"[A-Z]?[\w.]+", name) and name != "wall_offset_us":
        assert _is_there(name), word
