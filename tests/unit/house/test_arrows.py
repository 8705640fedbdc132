"""Every package has a layer in the import contracts of pyproject.toml, and the page names it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOME = ROOT / "libs/lookout"
#: packages whose parts have layers of their own
GROUPS = {"video", "models", "streams", "past", "recordings", "runtime"}


def _layered() -> set[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {name for layer in layers for name in re.split(r" [|:] ", layer)}


def test_every_package_has_a_layer() -> None:
    top = {path.name for path in HOME.iterdir() if (path / "__init__.py").exists()} - GROUPS
    parts = {
        f"{group}.{path.name}"
        for group in GROUPS
        for path in (HOME / group).iterdir()
        if (path / "__init__.py").exists() and path.name != "tiny"
    }
    assert {f"lookout.{name}" for name in top | parts} <= _layered()


def test_clients_of_kafka_are_made_in_one_place() -> None:
    """Those of `lookout.runtime.kafka_clients` follow a password that changes."""
    clients = re.compile(r"confluent_kafka(\.admin)? import [^\n(]*\b(Producer|Consumer|AdminClient)\b")
    several = re.compile(r"confluent_kafka(\.admin)? import \([^)]*\b(Producer|Consumer|AdminClient)\b")
    wrong = [
        str(file.relative_to(ROOT))
        for home in (ROOT / "libs/lookout", ROOT / "services")
        for file in home.rglob("*.py")
        if (text := file.read_text()) and (clients.search(text) or several.search(text))
    ]
    assert not wrong, "import them from lookout.runtime.kafka_clients: " + ", ".join(wrong)


def test_the_page_says_what_every_package_is_for() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    names = {name.replace(".", "/") for name in _layered()} - {"lookout/v1", "lookout/services"}
    assert not [name for name in sorted(names) if f"`libs/{name}" not in page]
