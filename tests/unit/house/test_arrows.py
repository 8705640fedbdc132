"""The arrows between rooms run one way, and the algorithms know nothing of transport."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.source import walk

ROOT = Path(__file__).parents[3]
TRANSPORT = {"confluent_kafka", "redis", "grpc", "kubernetes"}
ALGORITHMS = {
    "streams",
    "motion",
    "segments",
    "files",
    "sandbox",
    "pruning",
    "vision",
    "windows",
    "recordings",
    "memory",
    "rules",
}

# What every room may import of Lookout, and what each may import beside it.
COMMON = {
    "errors", "cores", "disk", "lazy", "local_time", "numbers", "outside_text", "batching", "fairness",
    "content_version",
}  # fmt: skip
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "cores": set(),
    "disk": set(),
    "lazy": set(),
    "local_time": {"errors"},
    "numbers": {"errors"},
    "outside_text": {"errors"},
    "batching": set(),
    "fairness": set(),
    "content_version": set(),
    "tenants": {"net", "observe", "wire", "worker"},
    "flops": set(),
    "models": set(),
    "v1": set(),
    "wire": {"v1"},
    "motion": set(),
    "segments": {"motion"},
    "files": {"motion", "segments"},
    "sandbox": {"motion", "segments", "files"},
    "pruning": {"motion"},
    "vision": {"flops", "motion", "pruning"},
    "windows": {"pruning", "vision"},
    "streams": {"engines", "motion", "pruning", "segments", "vision", "windows"},
    "presets": {"pruning", "windows"},
    "families": {"flops", "models", "vision", "windows"},
    "recordings": {"windows"},
    "memory": {"windows"},
    "engines": {"families", "models", "pruning", "vision", "windows", "recordings", "memory", "flops"},
    "rules": {"v1", "wire"},
    "analysis": {
        "families", "motion", "segments", "files", "sandbox", "pruning", "vision", "windows", "streams",
        "recordings", "engines", "models", "presets",
    },
    "pipeline": {
        "files", "sandbox", "pruning", "presets", "engines", "models", "segments", "session",
    },
    "session": {
        "motion", "segments", "pruning", "vision", "windows", "families", "presets", "streams", "engines",
        "models",
    },
    "chains": {
        "v1", "wire", "motion", "windows", "engines", "streams", "worker", "store", "erasures", "presets",
    },
    "verification": {
        "v1", "wire", "sandbox", "models", "vision", "windows", "engines", "worker", "store", "services",
        "streams", "families", "chains", "rules", "memory", "chapters", "backtest", "erasures",
    },
    "backtest": {
        "v1", "wire", "windows", "engines", "worker", "streams", "models", "chains", "rules", "pipeline",
        "jobs", "segments", "files", "session",
    },
    "evaluation": {
        "pruning", "vision", "windows", "families", "presets", "streams", "engines", "models",
    },
    "observe": {"wire"},
    "kafka_clients": set(),
    "net": {"observe", "wire", "kafka_clients"},
    "worker": {"v1", "wire", "models", "net", "observe", "kafka_clients"},
    "chapters": {"v1", "memory", "store", "net", "worker"},
    "store": {"v1", "wire", "net", "worker"},
    "erasures": {"v1", "wire", "net", "observe", "store", "worker", "kafka_clients"},
    "local": {"v1", "wire", "net", "worker", "kafka_clients"},
    "cli": {
        "v1", "wire", "motion", "segments", "files", "sandbox", "rules", "net", "observe", "worker",
        "store", "local", "models", "pipeline", "analysis", "recordings", "memory", "evaluation",
        "verification", "watchbench", "chains", "backtest", "erasures", "chapters", "jobs", "streams",
        "families", "kafka_clients",
    },
    "watchbench": {"segments", "streams", "pruning", "vision", "windows", "engines", "models"},
    "jobs": {
        "v1", "wire", "motion", "analysis", "files", "sandbox", "segments", "recordings", "net", "rules",
    },
    "services": {
        "v1", "wire", "motion", "segments", "files", "sandbox", "pruning", "vision", "windows",
        "jobs", "analysis", "recordings", "memory", "families", "presets", "engines", "streams",
        "chains", "backtest", "rules", "store", "chapters", "net", "observe", "worker", "models", "erasures",
        "tenants", "kafka_clients",
    },
}  # fmt: skip


def _rooms() -> dict[str, Path]:
    home = ROOT / "libs/lookout"
    rooms = {path.name: path for path in home.iterdir() if (path / "__init__.py").exists()}
    rooms |= {path.stem: path for path in home.glob("*.py") if path.stem != "__init__"}
    return {**rooms, "watchbench": ROOT / "libs/watchbench"}


def _imports(path: Path) -> Iterator[tuple[Path, str]]:
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in walk(file.read_text()):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}:{node.lineno}: import by full name"
                assert node.module
                if node.module == "lookout":
                    yield from ((file, f"lookout.{alias.name}") for alias in node.names)
                else:
                    yield file, node.module


def _room_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "lookout" and len(parts) > 1:
        return parts[1]
    return parts[0] if parts[0] == "watchbench" else None


def test_every_room_has_its_arrows_written_down() -> None:
    assert set(_rooms()) <= set(ALLOWED)


@pytest.mark.parametrize("room", sorted(_rooms()))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = ALLOWED[room] | {room} | COMMON
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file, module in _imports(_rooms()[room])
        if (target := _room_of(module)) and target not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", sorted(ALGORITHMS & set(_rooms())))
def test_algorithms_know_no_transport(room: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file, module in _imports(_rooms()[room])
        if module.split(".")[0] in TRANSPORT
    ]
    assert not wrong, "\n".join(wrong)


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


def test_a_service_imports_no_other_service() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file, module in _imports(ROOT / "services")
        if module.startswith("lookout.services.")
        and module.split(".")[2] != file.relative_to(ROOT / "services").parts[0]
    ]
    assert not wrong, "\n".join(wrong)


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports, the common ones apart."""
    return {
        room: {target for _, module in _imports(path) if (target := _room_of(module))} - {room} - COMMON
        for room, path in _rooms().items()
    }


def files() -> dict[str, set[str]]:
    """The files of libs and services that each one imports, at its head or later, by module name."""
    homes = {ROOT / "libs/lookout": "lookout", ROOT / "libs/watchbench": "watchbench"}
    homes[ROOT / "services"] = "lookout.services"
    paths = {
        ".".join((name, *path.relative_to(home).with_suffix("").parts)).removesuffix(".__init__"): path
        for home, name in homes.items()
        for path in home.rglob("*.py")
    }
    return {
        module: {name for name in _modules(path) if name in paths} - {module}
        for module, path in paths.items()
    }


def _modules(path: Path) -> Iterator[str]:
    for node in walk(path.read_text()):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _circle(arrows: dict[str, set[str]]) -> str:
    """The first circle, as text; empty: there is none."""
    done: set[str] = set()

    def follow(place: str, trail: tuple[str, ...]) -> str:
        if place in trail:
            return " -> ".join((*trail[trail.index(place) :], place))
        if place in done:
            return ""
        circles = (follow(target, (*trail, place)) for target in sorted(arrows.get(place, ())))
        circle = next(filter(None, circles), "")
        done.add(place)
        return circle

    return next(filter(None, (follow(place, ()) for place in sorted(arrows))), "")


def test_no_circles_between_rooms() -> None:
    assert not _circle(arrows())


def test_no_circles_between_files() -> None:
    own = {place: {t for t in targets if not place.startswith(t + ".")} for place, targets in files().items()}
    assert not _circle(own)


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == "b -> c -> b"
    assert not _circle({"a": {"b", "c"}, "b": {"c"}})


PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- arrows -->", "<!-- /arrows -->"


def picture() -> str:
    """The arrows as the architecture page shows them."""
    rows = [
        f"| `{room}` | {', '.join(f'`{t}`' for t in sorted(to))} |"
        for room, to in sorted(arrows().items())
        if to
    ]
    return "\n".join([BEGIN, "| room | imports |", "| --- | --- |", *rows, END])


def test_the_page_shows_the_arrows_that_there_are() -> None:
    text = PAGE.read_text()
    shown = text[text.index(BEGIN) : text.index(END) + len(END)]
    assert shown == picture(), "run `make architecture`"


def test_the_page_says_what_every_room_is_for() -> None:
    text = PAGE.read_text()
    rooms = {path.name for path in _rooms().values()} - {"v1", "services"}
    assert not [room for room in sorted(rooms) if f"/{room}` |" not in text]


def main() -> None:
    """Write the arrows into the page."""
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN)] + picture() + text[text.index(END) + len(END) :])


if __name__ == "__main__":
    main()
