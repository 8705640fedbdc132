"""`lookout model check --calibrate`: settings for a checkpoint, chosen from clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from lookout.cli.options import CliError
from lookout.cli.output import TerminalConsole, say
from lookout.models import listed_questions
from lookout.video.files.names import video_files

if TYPE_CHECKING:
    from watchbench.evaluation.labels import LabelledClip


@dataclass(frozen=True, slots=True)
class Material:
    """The clips to choose settings from, and the questions about them."""

    clips: Sequence[LabelledClip]
    questions: Sequence[str]
    labelled: bool


def read_material(folder: Path, source: Path, asked: Sequence[str]) -> Material:
    """Return the clips and questions of `--calibrate`.

    Args:
        folder: The checkpoint's folder.
        source: A labels file, a clip, or a folder of clips.
        asked: Questions about clips without labels; empty: the questions that the checkpoint's folder lists.

    Raises:
        CliError: There are no clips or no questions.
        LookoutError: The labels cannot be read.
    """
    from watchbench.evaluation.labels import questions_of

    labelled = source.suffix.lower() == ".csv"
    if labelled and asked:
        raise CliError("--question: the labels file already has the questions; omit this option")
    clips = _clips(source, labelled)
    return Material(clips, questions_of(clips) if labelled else _questions(folder, asked), labelled)


def choose_settings(
    console: Console,
    folder: Path,
    material: Material,
    sampling: Mapping[str, float | None],
    device: str,
    dtype: str | None,
) -> dict[str, Any]:
    """Compare settings on clips, print tables and the chosen settings; return these as JSON data.

    Args:
        console: Where the tables and settings are printed.
        folder: The checkpoint's folder.
        material: Clips and questions.
        sampling: `window_s`, `stride_s` and `fps`.
        device: Where the model runs.
        dtype: Data type with which the model computes.

    Raises:
        LookoutError: A clip cannot be read.
    """
    from watchbench.evaluation.choices import choose

    with Progress(console=TerminalConsole(stderr=True), transient=True) as bar:
        choices = choose(
            folder,
            material.clips,
            material.questions,
            labelled=material.labelled,
            **sampling,
            device=device,
            dtype=dtype,
            progress=lambda some, name: bar.track(some, total=len(material.clips), description=name),
        )
    document = choices.as_json(folder)
    _show(console, document)
    return document


def _clips(source: Path, labelled: bool) -> list[LabelledClip]:
    from watchbench.evaluation.labels import LabelledClip, read_labels

    if not source.exists():
        raise CliError(f"--calibrate: {source} does not exist")
    if labelled:
        return read_labels(source)
    clips = [LabelledClip(file) for file in (video_files(source) if source.is_dir() else [source])]
    if not clips:
        raise CliError(
            f"--calibrate: {source} has no clip; give a folder of videos, or a CSV file of labelled ones"
        )
    return clips


def _questions(folder: Path, asked: Sequence[str]) -> list[str]:
    if asked:
        return list(dict.fromkeys(asked))
    listed = listed_questions(folder)
    if not listed:
        raise CliError("--calibrate: clips without labels need questions; give them with --question")
    return [question.wordings[0] for question in listed]


def _show(console: Console, document: Mapping[str, Any]) -> None:
    by = document["by"]
    name = {"f1": "F1", "dp": "|dp|"}[by]
    _rows(console, f"settings, {document['clips']} clips", "FLOPs", name, by, document["settings"])
    table = Table("question", "default", "strides", "strides better by", "preset", title_justify="left")
    for question, rows in document["questions"].items():
        default, strides = (_value(rows[preset], by) for preset in ("default", "strides"))
        table.add_row(
            escape(question), default, strides, _value(rows["strides"], "better by"), rows["preset"]
        )
    console.print(table)
    _rows(console, "a recording's KV", "KV", name, by, document["recordings"])
    if any(row.get("verdict") == "too few clips" for row in document["settings"].values()):
        from watchbench.evaluation.choices import LEAST_CLIPS, LEAST_TRUE

        console.print(
            f"A question decides with {LEAST_CLIPS} clips or more"
            + (f", of which {LEAST_TRUE} show what it asks for." if by == "f1" else ".")
        )
    if len({rows["preset"] for rows in document["questions"].values()}) > 1:
        console.print("Add the watches that strides answer with `lookout watch add --asked strides`.")
    say(console, "settings: {}", document["line"])


def _rows(
    console: Console, title: str, cost: str, name: str, by: str, rows: Mapping[str, Mapping[str, Any]]
) -> None:
    table = Table(title, cost, f"{name} (95 %)", "better than the default by", "", title_justify="left")
    for setting, row in rows.items():
        table.add_row(
            setting, f"{row['cost']:.3f}", _value(row, by), _value(row, "better by"), row.get("verdict", "")
        )
    console.print(table)


def _value(row: Mapping[str, Any], key: str) -> str:
    if row.get(key) is None:
        return "-"
    low, high = row.get(f"{key} 95 %", (None, None))
    return f"{row[key]:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")
