"""`lookout model check` and `lookout eval`: a checkpoint under test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from lookout.cli.model import DeviceOption, find_device, find_model
from lookout.cli.model_choices import choose_settings, read_material
from lookout.cli.model_serve import serve
from lookout.cli.options import CliError, PolicyOption, Preset, PresetOption
from lookout.cli.output import TerminalConsole, escaped
from lookout.models.device import Dtype
from lookout.models.errors import ModelError

if TYPE_CHECKING:
    from watchbench.evaluation.check import ModelReport
    from watchbench.evaluation.evaluate import Evaluation
    from watchbench.evaluation.labels import LabelledClip

MIB = 1 << 20
COMPARED = {True: "[green]same[/]", False: "[red]differs[/]", None: "not compared"}

app = typer.Typer(no_args_is_help=True, help="Check or serve a model checkpoint, or write its vision half.")

app.command("serve")(serve)

FolderArgument = Annotated[Path, typer.Argument(help="Folder of the checkpoint.", show_default=False)]
LabelsOption = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="CSV of labelled clips with the columns clip, question, answer (yes or no), start_s, end_s.",
    ),
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Write the reliability plot to this SVG file.")
]
_OWN = "[default: as the folder's lookout_windows.json says, else "
WindowOption = Annotated[
    float | None,
    typer.Option("--window", help=f"Seconds of a window.  {_OWN}40]", min=0.1, show_default=False),
]
StrideOption = Annotated[
    float | None,
    typer.Option("--stride", help=f"Seconds by which windows slide.  {_OWN}8]", min=0.1, show_default=False),
]
FpsOption = Annotated[
    float | None,
    typer.Option("--fps", help=f"Frames sampled per second.  {_OWN}2]", min=0.01, show_default=False),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype", help="float32, bfloat16 or float16; auto: float32 on the CPU, on a GPU its native type."
    ),
]
PrecisionOption = Annotated[
    float,
    typer.Option(
        "--precision",
        help="Wanted precision; prints the threshold that reaches it for each question.",
        min=0,
        max=1,
    ),
]
CalibrateOption = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        help="Choose settings from clips: a CSV file as for --labels, or a folder of clips.",
        show_default=False,
    ),
]
CalibrateQuestionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--question",
        "-q",
        help="Question about the clips of --calibrate if they have no labels; repeat for more.  "
        "[default: those that the folder lists]",
        show_default=False,
    ),
]


@app.command("check")
def check(
    folder: FolderArgument,
    clip: Annotated[
        Path | None,
        typer.Option("--clip", help="A clip to compare on.  [default: a rendered one]", show_default=False),
    ] = None,
    labels: LabelsOption = None,
    plot: PlotOption = None,
    cameras: Annotated[int, typer.Option("--cameras", help="Cameras to size the memory for.", min=1)] = 1,
    window: WindowOption = None,
    stride: StrideOption = None,
    fps: FpsOption = None,
    precision: PrecisionOption = 0.9,
    calibrate: CalibrateOption = None,
    questions: CalibrateQuestionOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
) -> None:
    """Load a checkpoint and compare pixels, prompt, positions and answers with transformers on a clip.

    With --labels it also finds the threshold of every question for a wanted precision. With --calibrate it
    compares presets, anchors and ways to keep a recording's KV on your clips, and prints the settings to use:
    a default stays unless another is better, or as good and cheaper, by a 95 % interval over clips. The last
    line is JSON.
    The exit code is 1 if something differs, or if the model says neither yes nor no.
    """
    from watchbench.evaluation.check import check_model

    console = TerminalConsole()
    kind, place = _known(dtype), find_device(device)
    material = None if calibrate is None else read_material(folder, calibrate, questions or ())
    report = check_model(
        find_model(folder),
        _default_clip() if clip is None else _existing(clip),
        cameras=cameras,
        window_s=window,
        fps=fps,
        device=place,
        dtype=kind,
    )
    _show_report(console, report)
    document = report.as_json()
    if labels is not None:
        evaluation = _evaluated(folder, labels, window, stride, fps, place, kind)
        document["calibration"] = _calibrated(console, evaluation, precision, plot)
    if material is not None:
        sampling = {"window_s": window, "stride_s": stride, "fps": fps}
        document["choices"] = choose_settings(console, folder, material, sampling, place, kind)
    console.print(json.dumps(document), soft_wrap=True, highlight=False, markup=False)
    if not (report.same and report.answers):
        raise typer.Exit(1)


@app.command("vision")
def vision(
    folder: FolderArgument,
    target: Annotated[Path, typer.Argument(help="New folder for the vision half.", show_default=False)],
) -> None:
    """Write the half of a checkpoint that prune-encode pods need: tower and projector, no language layers.

    The half has the digest of the whole checkpoint and counts as the same model. The last line is JSON.
    """
    from lookout.models.vision_half import write_vision_half

    console = TerminalConsole()
    try:
        half = write_vision_half(folder, target)
    except ModelError as error:
        raise CliError(str(error)) from error
    console.print(
        f"weights: {half.half_bytes / MIB:.1f} of {half.whole_bytes / MIB:.1f} MiB; for the chart's "
        f"model.url.vision: tar -C {escaped(str(target))} -czf vision.tar.gz .",
        soft_wrap=True,
    )
    document = {"digest": half.digest, "half_bytes": half.half_bytes, "whole_bytes": half.whole_bytes}
    console.print(json.dumps(document), soft_wrap=True, highlight=False, markup=False)


def evaluate_model(
    model: Annotated[Path, typer.Option("--model", help="Folder of the checkpoint.", show_default=False)],
    labels: Annotated[
        Path,
        typer.Option(
            "--labels",
            help="CSV of labelled clips with the columns clip, question, answer (yes or no), start_s, end_s.",
            show_default=False,
        ),
    ],
    plot: PlotOption = None,
    preset: PresetOption = "default",
    policy: PolicyOption = None,
    window: WindowOption = None,
    stride: StrideOption = None,
    fps: FpsOption = None,
    precision: PrecisionOption = 0.9,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
) -> None:
    """Score a checkpoint on labelled clips: F1 per question and cost, with and without pruning and reuse.

    The last line is JSON.
    """
    console = TerminalConsole()
    evaluation = _evaluated(
        find_model(model), labels, window, stride, fps, find_device(device), _known(dtype), preset, policy
    )
    result = evaluation.as_json()
    table = Table(
        "question", *result["ways"], title=f"F1, {evaluation.windows} windows", title_justify="left"
    )
    for question in evaluation.product:
        scores = [way["f1"][question] for way in result["ways"].values()]
        table.add_row(escape(question), *("-" if score is None else f"{score:.3f}" for score in scores))
    for row, name in (
        ("tokens kept", "tokens_kept"),
        ("FLOPs, of dense", "flops_share"),
        ("mean |difference of p(yes)|", "dp"),
    ):
        table.add_row(row, *(f"{way[name]:.4f}" for way in result["ways"].values()), style="dim")
    console.print(table)
    result["calibration"] = _calibrated(console, evaluation, precision, plot)
    console.print(json.dumps(result), soft_wrap=True, highlight=False, markup=False)


def _show_report(console: Console, report: ModelReport) -> None:
    engines = " and ".join(report.engines) or "no engine here"
    console.print(
        f"[bold]{escaped(report.family)}[/] with a {escaped(report.language_model)} language model; "
        f"runs on {escaped(engines)}\n"
        f"input {report.width:d} x {report.height:d} pixels, {report.tokens:d} tokens a frame; a window of "
        f"{report.window_s:g} s at {report.fps:g} a second has {report.window_rows:d} rows\n"
        f"memory for {report.cameras:d} camera(s): {report.memory_bytes / MIB:.0f} MiB, of which weights "
        f"{report.weight_bytes / MIB:.0f} MiB; KV of a camera "
        f"{report.window_rows * report.row_bytes / MIB:.0f} MiB, nothing pruned"
    )
    table = Table("compared with transformers", "", "")
    for comparison in report.comparisons:
        table.add_row(comparison.name, COMPARED[comparison.same], escape(comparison.detail))
    console.print(table)
    yes, no = (escaped(repr(word)) for word in report.answer)
    said = f"{yes} and {no} have {report.answer_probability:.1%} of the probability where the answer is read"
    if not report.answers:
        said += ": [red]the checkpoint is about to say something else[/], and p(yes) means little"
    console.print(said, highlight=False)


def _evaluated(
    model: Path,
    labels: Path,
    window: float | None,
    stride: float | None,
    fps: float | None,
    device: str,
    dtype: str | None,
    preset: Preset = "default",
    policy: str | None = None,
) -> Evaluation:
    from watchbench.evaluation.evaluate import evaluate
    from watchbench.evaluation.labels import read_labels

    clips = read_labels(labels)
    with Progress(console=TerminalConsole(stderr=True), transient=True) as bar:

        def shown(some: Iterable[LabelledClip], name: str) -> Iterable[LabelledClip]:
            return bar.track(some, total=len(clips), description=name)

        return evaluate(
            model,
            clips,
            window_s=window,
            stride_s=stride,
            fps=fps,
            preset=preset,
            policy=policy,
            device=device,
            dtype=dtype,
            progress=shown,
        )


def _calibrated(
    console: Console, evaluation: Evaluation, precision: float, plot: Path | None
) -> dict[str, object]:
    """Print and return thresholds and reliability of the answers that the fleet would give."""
    from watchbench.evaluation.evaluate import calibrate
    from watchbench.evaluation.scores import pooled, reliability_plot

    thresholds = calibrate(evaluation.product, precision)
    table = Table("question", f"threshold for {precision:.0%} precision")
    for question, threshold in thresholds["thresholds"].items():
        table.add_row(
            escape(question), "no threshold reaches it" if threshold is None else f"{threshold:.3f}"
        )
    console.print(table)
    console.print("p(yes)   true  windows")
    for p, true, count in thresholds["reliability"]:
        console.print(f"{p:6.2f} {true:6.2f}  {count:7d}  " + "#" * round(20 * true), highlight=False)
    if plot is not None:
        plot.write_text(reliability_plot(pooled(list(evaluation.product.values())), "reliability"))
    return thresholds


def _existing(path: Path) -> Path:
    if not path.exists():
        raise CliError(f"{path} does not exist")
    return path


def _known(dtype: str) -> str | None:
    if dtype not in get_args(Dtype):
        raise CliError(f"--dtype {dtype!r}: choose {', '.join(get_args(Dtype))}")
    return None if dtype == "auto" else dtype


def _default_clip() -> Path:
    import watchbench

    films = sorted((Path(next(iter(watchbench.__path__))) / "films").glob("*.mp4"))
    if not films:
        raise CliError("no clip comes with this installation: give one with --clip")
    return films[0]
