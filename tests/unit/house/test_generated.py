"""The generated messages are what protos/ says today."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[3]


def test_messages_are_generated_from_the_protos(tmp_path: Path) -> None:
    protos = sorted(str(path) for path in (ROOT / "protos/lookout").glob("*/*.proto"))
    google = files("grpc_tools") / "_proto"
    base = ["protoc", f"-I{ROOT / 'protos'}", f"-I{google}"]
    assert protoc.main([*base, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos]) == 0
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.glob("lookout/*/*")}
    stored = {name: ROOT / "libs" / name for name in fresh}
    stale = [name for name, path in stored.items() if not path.exists() or path.read_text() != fresh[name]]
    assert not stale, f"run `make protos`: {stale}"
