"""The public face: names, what an import loads, and the examples that need no Kafka."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

import lookout
from lookout.video.segments import cut
from tests.tiny_models import checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
FILMS = Path(str(files("watchbench"))) / "films"
HEAVY = ("torch", "transformers", "vllm", "av", "confluent_kafka", "redis", "grpc", "kubernetes", "scipy")


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_names_are_these() -> None:
    assert sorted(lookout.__all__) == [
        "Analysis",
        "AnalysisError",
        "AnalysisSettings",
        "CodecError",
        "LookoutError",
        "Pipeline",
        "PipelineError",
        "Session",
        "SessionAnswer",
        "SessionError",
        "Verdict",
        "VideoReader",
        "__version__",
        "analyze",
    ]
    assert all(hasattr(lookout, name) for name in lookout.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        lookout.no_such_name  # noqa: B018


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "policy"), [(None, "PASSIVE"), pytest.param("ACTIVE", "ACTIVE", marks=pytest.mark.long)]
)
def test_threads_of_torch_that_wait_give_their_core_away(given: str | None, policy: str) -> None:
    """On two busy cores two threads that keep theirs took twenty times the time of one."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "TRUE"} | ({} if given is None else {"OMP_WAIT_POLICY": given})
    command = [sys.executable, "-c", "import lookout, torch"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=280)
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


def test_an_import_loads_nothing_heavy() -> None:
    code = (
        f"import sys, lookout, lookout.rules, lookout.wire; print([n for n in {HEAVY} if n in sys.modules])"
    )
    assert run("-c", code).strip() == "[]"


def test_the_package_is_typed() -> None:
    assert (Path(lookout.__file__).parent / "py.typed").is_file()


def test_every_error_has_one_root() -> None:
    from lookout import rules, wire
    from lookout.models import engines, vision, windows
    from lookout.runtime import store
    from lookout.video import segments

    roots = [
        segments.CodecError, engines.EngineError, rules.RuleError, store.StoreError, vision.VisionError,
        windows.WindowError, wire.WireError,
    ]  # fmt: skip
    assert all(issubclass(each, lookout.LookoutError) for each in roots)


def test_wrong_settings_of_a_pipeline_are_refused(tmp_path: Path) -> None:
    with pytest.raises(lookout.PipelineError, match=r"has 2\.6 samples"):
        lookout.Pipeline(fps=2, stride_s=1.3)
    with pytest.raises(lookout.PipelineError, match="preset"):
        lookout.Pipeline(preset="nothing")
    with pytest.raises(lookout.LookoutError, match=r"nowhere does not exist"):
        lookout.Pipeline(model=tmp_path / "nowhere")
    with pytest.raises(lookout.LookoutError, match=r"config\.json"):
        lookout.Pipeline(model=tmp_path)


def clip(film: str, seconds: float, folder: Path) -> Path:
    """The first seconds of a rendered film."""
    (source,) = FILMS.glob(f"{film}-*.mp4")
    path = folder / f"{film}.ts"
    path.write_bytes(b"".join(each.data for each in cut(source) if each.start_us < seconds * 1e6))
    return path


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example as a script in this process, which has its imports already; what it printed."""

    def run_one(name: str, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_one


def test_example_pipeline_prints_every_answer(tmp_path: Path, run_example: Callable[..., str]) -> None:
    lines = run_example("pipeline.py", clip("doorway", 6, tmp_path)).splitlines()
    assert len(lines) >= 2 * 3
    assert all("p(yes)" in line for line in lines)


def test_example_pruning_policy_keeps_the_lower_part(tmp_path: Path, run_example: Callable[..., str]) -> None:
    lines = run_example("pruning_policy.py", clip("doorway", 6, tmp_path)).splitlines()
    shares = [float(line.rsplit(maxsplit=1)[1]) for line in lines]
    # half of every frame, and the whole of the anchors
    assert len(shares) >= 3
    assert all(0.5 < share < 1 for share in shares)
    assert len((EXAMPLES / "pruning_policy.py").read_text().splitlines()) < 40


def test_example_token_policy_drops_half_behind_the_tower(
    tmp_path: Path, run_example: Callable[..., str]
) -> None:
    path = clip("doorway", 6, tmp_path)
    shares = [float(line.rsplit(maxsplit=1)[1]) for line in run_example("token_policy.py", path).splitlines()]
    assert len(shares) >= 3
    assert all(0 < share < 0.7 for share in shares)


@pytest.mark.long
def test_example_frames_reads_every_second_once(tmp_path: Path, run_example: Callable[..., str]) -> None:
    clips = [clip("doorway", 6, tmp_path), clip("room", 5, tmp_path)]
    shapes = [
        ast.literal_eval(line)
        for line in run_example("frames.py", *clips, tmp_path / "batch.png").splitlines()
    ]
    assert {shape[1:] for shape in shapes} == {(4, 224, 224, 3)}
    seconds = 0
    for path in clips:
        with lookout.VideoReader(path) as reader:
            seconds += int(reader.duration)
    assert sum(shape[0] for shape in shapes) == seconds
    with Image.open(tmp_path / "batch.png") as drawn:
        assert drawn.size == (4 * 224, shapes[0][0] * 224)


@pytest.mark.long
def test_example_policies_draws_a_line_for_each(tmp_path: Path, run_example: Callable[..., str]) -> None:
    run_example("policies.py", clip("room", 12, tmp_path), tmp_path / "policies.png")
    with Image.open(tmp_path / "policies.png") as drawn:
        colours = {colour for _, colour in drawn.convert("RGB").getcolors(1 << 16) or []}
    assert {(0x2F, 0x6D, 0xB3), (0xD9, 0x82, 0x2B)} <= colours


def test_example_service_has_sixty_lines_of_code() -> None:
    """Counted as CONTRIBUTING says: without imports, docstrings and blank lines."""
    source = (EXAMPLES / "service.py").read_text()
    module = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(module):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = [number for number, line in enumerate(source.splitlines(), 1) if line.strip()]
    assert 30 < len(set(lines) - left_out) <= 60


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["masks.py", *(pytest.param(name, marks=pytest.mark.long) for name in ("timeline.py", "evidence.py"))],
)
def test_examples_of_the_gallery_draw_their_picture(
    name: str, tmp_path: Path, run_example: Callable[..., str]
) -> None:
    question = [] if name == "masks.py" else ["Is anyone lying on the ground?"]
    picture = tmp_path / "picture.png"
    run_example(name, clip("room", 20, tmp_path), *question, picture)
    with Image.open(picture) as drawn:
        assert drawn.width > drawn.height > 50
        assert len(drawn.convert("RGB").getcolors(1 << 24) or []) > 100


def test_masks_of_the_policies_that_are_named_are_drawn(
    tmp_path: Path, run_example: Callable[..., str]
) -> None:
    film, heights = clip("room", 20, tmp_path), []
    for names in (["default"], ["default", "codecsight"]):
        run_example("masks.py", film, tmp_path / "picture.png", *names)
        with Image.open(tmp_path / "picture.png") as drawn:
            heights.append(drawn.height)
    assert heights[1] == 2 * heights[0]


def test_example_backtest_finds_the_fall(tmp_path: Path, run_example: Callable[..., str]) -> None:
    clip("room", 20, tmp_path)
    said = run_example("backtest.py", tmp_path, "Is anyone lying on the ground?", "--of", "2/3")
    assert "peak p(yes) 1.0" in said
    assert "1 incidents in 1 files" in said
    assert "s of processor time" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere", "Is it?", "--page", "."], "names the folder"),
        (["nowhere", "Is it?", "--page", "answers.csv"], "works only for recordings"),
        (["nowhere", "Is it?", "--of", "2"], "--of '2' is not K/N"),
        (["nowhere", "Is it?", "--of", "9" * 5000 + "/1"], "is not K/N"),
        (["nowhere", "Is it?", "--threshold", "nan"], "threshold"),
        (["nowhere", ""], "question"),
    ],
)
def test_example_backtest_says_in_one_line_what_is_wrong(
    words: list[str], why: str, run_example: Callable[..., str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run_example("backtest.py", *words)
    assert str(end.value).startswith("error: ")
    assert why in str(end.value)


def test_the_snippet_of_the_readme_prints_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_example: Callable[..., str]
) -> None:
    page = (EXAMPLES.parent / "README.md").read_text()
    output = page.partition("```text\n")[2].partition("```")[0].removesuffix("...\n")
    (film,) = FILMS.glob("room-*.mp4")
    (tmp_path / "clip.mp4").write_bytes(film.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert run_example("quickstart.py").startswith(output)
    assert output.count("\n") == 3


def test_example_counting_names_the_likeliest_count(tmp_path: Path, run_example: Callable[..., str]) -> None:
    lines = run_example("counting.py", clip("doorway", 6, tmp_path), checkpoint("internvl")).splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"\d+ s: [0-5] \(\d+%\), p = [01]\.\d\d", line), line


def test_example_session_answers_each_window(tmp_path: Path, run_example: Callable[..., str]) -> None:
    lines = run_example("session.py", clip("doorway", 6, tmp_path)).splitlines()
    assert [line.rsplit(maxsplit=1)[1] for line in lines] == ["key", "incremental", "incremental"]


def test_example_memory_answers_from_what_it_watched(tmp_path: Path, run_example: Callable[..., str]) -> None:
    assert "based on (Moment(time=" in run_example("memory.py", clip("doorway", 6, tmp_path))


def test_example_analyze_sees_the_person(tmp_path: Path, run_example: Callable[..., str]) -> None:
    person, vehicle = run_example("analyze.py", clip("doorway", 6, tmp_path)).splitlines()
    assert float(person.split()[1]) > 0.5 > float(vehicle.split()[1])


def test_example_reader_reads_frames(tmp_path: Path, run_example: Callable[..., str]) -> None:
    said = run_example("reader.py", clip("doorway", 6, tmp_path))
    assert "(448, 448, 3) (2, 448, 448, 3)\n(2, 112, 112, 3)\n2000000 (112, 112, 3)" in said


def test_example_decode_says_what_a_segment_is(tmp_path: Path, run_example: Callable[..., str]) -> None:
    said = run_example("decode.py", clip("doorway", 4, tmp_path))
    assert "112, 112, 3) uint8\nh264 " in said


def test_example_tower_encodes_half_of_a_frame(run_example: Callable[..., str]) -> None:
    assert run_example("tower.py") == "torch.Size([8, 192])\n"
