"""Every package that is locked is named with its licence: `make third-party` writes the list."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOTICES = ROOT / "THIRD_PARTY.md"
LOCK = ROOT / "requirements/dev.txt"
BEGIN, END = "<!-- locked -->", "<!-- /locked -->"
#: not locked for every machine: a GPU's packages, and those of other systems
ELSEWHERE = frozenset({"cuda-python", "pynvvideocodec", "vllm"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """A package's name as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> list[str]:
    """Names of the packages in the lock."""
    return re.findall(r"^([A-Za-z0-9._-]+)==", LOCK.read_text(), re.M)


def licence(name: str) -> str | None:
    """What an installed package says of its licence; None where it is not installed here."""
    try:
        facts = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if expression := facts.get("License-Expression"):
        return str(expression)
    classes = [each for each in facts.get_all("Classifier") or [] if each.startswith("License :: ")]
    if classes:
        return ", ".join(sorted(each.rpartition(" :: ")[2] for each in classes))
    lines = (facts.get("License") or "").strip().splitlines()
    return lines[0].strip()[:80] if lines else "in its files"


def known() -> dict[str, str]:
    """Package and licence, as the notices list them."""
    text = NOTICES.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.M)
    return {name: words for name, words in rows if name not in ("package", "---")}


def table() -> str:
    """The list; what is not installed here (packages of other systems) stays as it was listed."""
    before = known()
    rows = [(name, licence(name) or before.get(name, "in its files")) for name in sorted(locked())]
    return "\n".join(
        ["| package | licence |", "| --- | --- |", *(f"| {name} | {words} |" for name, words in rows)]
    )


def direct() -> set[str]:
    """Packages that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *(entry for extra in extras for entry in extra)]
    groups = project["dependency-groups"]
    wanted += [entry for name in groups if name != "docs" for entry in groups[name] if isinstance(entry, str)]
    names = {normal(_NAME.match(entry)[0]) for entry in wanted if _NAME.match(entry)}  # type: ignore[index]
    return names - {"lookout-fleet"}


def test_every_locked_package_is_listed_with_the_licence_that_it_states() -> None:
    listed = known()
    stated = {name: licence(name) for name in locked()}
    assert sorted(listed) == sorted(stated), "make third-party writes the list"
    wrong = {name: words for name, words in stated.items() if words is not None and listed[name] != words}
    assert not wrong, "make third-party writes the list"


def test_every_direct_dependency_is_locked() -> None:
    assert direct() - {normal(name) for name in locked()} <= ELSEWHERE


def test_every_requirement_has_a_hash() -> None:
    for path in (LOCK, ROOT / "requirements/tools.txt"):
        text = path.read_text()
        pinned = len(re.findall(r"^[A-Za-z0-9._-]+==[^\\\n]*\\\n    --hash=sha256:", text, re.M))
        assert pinned == len(re.findall(r"^[A-Za-z0-9._-]+==", text, re.M)) > 0, path


if __name__ == "__main__":
    text = NOTICES.read_text()
    head, _, rest = text.partition(BEGIN)
    NOTICES.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")
