"""What the steps import beside the project, by wheel; asked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True, slots=True)
class Need:
    """A package: where it is missing, nothing runs, or only the steps named do not."""

    package: str
    steps: tuple[str, ...] = ()


#: beside torch and transformers each of them is a wheel of less than 60 MiB
NEEDS = (
    Need("torch"),
    Need("transformers"),
    Need("numpy"),
    Need("safetensors"),
    Need("tokenizers"),
    Need("structlog"),
    Need("platformdirs"),
    Need("tqdm"),
    Need("pydantic", ("kv8",)),
    Need("pydantic-core", ("kv8",)),
    Need("annotated-types", ("kv8",)),
    Need("typing-inspection", ("kv8",)),
    Need("av", ("oracles", "nvdec")),
    Need("hypothesis", ("oracles",)),
    Need("tenacity", ("oracles",)),
    Need("pydantic-settings", ("oracles",)),
    Need("pytest", ("oracles",)),
    Need("pytest-timeout", ("oracles",)),
    Need("PyNvVideoCodec", ("nvdec",)),
)


def installed(package: str) -> str | None:
    """Its version; None: it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def missing(step: str) -> list[str]:
    """The packages that a step needs and this machine lacks."""
    return [
        need.package
        for need in NEEDS
        if (not need.steps or step in need.steps) and installed(need.package) is None
    ]


def report() -> str:
    """A line for every package, and what to carry where some are missing."""
    lines, absent = [], []
    for need in NEEDS:
        present = installed(need.package)
        only = f" (steps {', '.join(need.steps)})" if need.steps else ""
        lines.append(f"  {need.package:16} {present or 'MISSING'}{only}")
        absent += [] if present else [need.package]
    if absent:
        lines.append(
            "  on a machine with a package index: pip download --no-deps --only-binary=:all: -d wheels "
            + " ".join(absent)
        )
        lines.append("  here: pip install --no-index --no-deps wheels/*.whl")
    return "\n".join(lines)
