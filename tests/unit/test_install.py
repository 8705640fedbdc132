"""The wheels in fresh environments: what a plain install can do, and what it says about the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.video.segments.clips import encode

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
NEEDS_MODEL = "torch is needed to run a model and is not installed: pip install 'lookout-fleet[model]'"


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd="/", check=False)


def _interpreter(version: str) -> str | None:
    """An installed Python of this version, pyenv's too; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates = [*sorted(pyenv.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    return next((str(path) for path in candidates if path and _run(path, "--version").returncode == 0), None)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "libs/watchbench"):
        built = _run(UV, "build", "--quiet", "--wheel", "-o", folder, source)
        assert built.returncode == 0, built.stderr
    return sorted(folder.glob("*.whl"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_a_plain_install_reads_video_and_names_what_a_model_needs(
    version: str, wheels: list[Path], tmp_path: Path
) -> None:
    interpreter = _interpreter(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} on this machine")
    home = tmp_path / "environment"
    assert _run(UV, "venv", "--quiet", "--python", interpreter, home).returncode == 0
    python, lookout = home / "bin/python", home / "bin/lookout"
    installed = _run(UV, "pip", "install", "--quiet", "--python", python, wheels[0])
    assert installed.returncode == 0, installed.stderr
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(encode("mp4"))

    assert "Standing questions" in _run(lookout, "--help").stdout
    assert "h264" in _run(lookout, "inspect", clip).stdout
    assert "is missing" in _run(lookout, "doctor").stdout
    shown = _run(python, "-c", f"import lookout; print(lookout.VideoReader({str(clip)!r}))").stdout
    assert shown.startswith(f"VideoReader({str(clip)!r}: h264 ")
    for name in ("Pipeline", "Session", "analyze"):
        ended = _run(python, "-c", f"import lookout; lookout.{name}")
        assert ended.stderr.strip().endswith(NEEDS_MODEL)
    asked = _run(lookout, "analyze", clip, "-q", "Is a person in view?").stderr.strip().splitlines()
    assert asked[-1] == f"error {NEEDS_MODEL}"  # after what the model is worth for the question


@pytest.mark.long
def test_the_wheels_hold_one_package_each(wheels: list[Path]) -> None:
    from zipfile import ZipFile

    tops = [{name.split("/")[0] for name in ZipFile(wheel).namelist()} for wheel in wheels]
    assert [{name for name in names if "." not in name} for names in tops] == [
        {"lookout"},
        {"watchbench"},
    ]
