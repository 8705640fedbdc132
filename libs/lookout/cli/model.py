"""The options for the model and the device that it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lookout import models
from lookout.cli.options import CliError
from lookout.cli.output import TerminalConsole, say
from lookout.text import clean

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        envvar="LOOKOUT_MODEL_DIR",
        help="Folder of a vision-language model's checkpoint.  [default: the small one included]",
        show_default=False,
    ),
]

DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where models run: cpu, cuda, cuda:1. For services the same as --set device=...  [default: cpu]",
        show_default=False,
    ),
]


AnywayOption = Annotated[
    bool,
    typer.Option(
        "--anyway", help="Ask a question that the model was not trained for; its answer means little."
    ),
]


def admit_questions(
    folder: Path, questions: Sequence[str], *, text: bool = False, anyway: bool = False
) -> None:
    """Reject questions that a model was not trained for, and print how well it answers the others.

    Args:
        folder: The model's checkpoint.
        questions: The questions.
        text: Whether answers in words are wanted.
        anyway: Warn instead of rejecting.

    Raises:
        QuestionError: A question is rejected.
    """
    models.check_questions(folder, questions, text=text, anyway=anyway)
    console = TerminalConsole(stderr=True)
    for question in questions:
        quality = None if text else models.question_quality(folder, question)
        if quality == models.UNTRAINED:
            say(console, "[yellow]“{}”: {}; its answer means little[/]", question, quality)
        elif quality is not None:
            say(console, "[dim]“{}”: {}[/]", question, quality)


def find_model(given: Path | None) -> Path:
    """Return the checkpoint's folder: `given`, otherwise that of the included small model.

    Raises:
        CliError: The folder does not contain a checkpoint.
    """
    try:
        return models.find_model(given)
    except models.ModelError as error:
        raise CliError(f"{error}: give another folder") from error


def find_device(given: str | None) -> str:
    """Return the device: `given`, otherwise the CPU.

    Raises:
        CliError: This machine does not have the device.
    """
    if given is None or given == "cpu":  # checking it would import torch, which takes seconds
        return "cpu"
    from lookout.models.device import check_device

    try:
        check_device(given)
    except models.ModelError as error:
        raise CliError(f"--device: {error}") from None
    return given


def with_device(common: Mapping[str, str], given: str | None) -> dict[str, str]:
    """Return the settings for all services, with the device added if it is given.

    Args:
        common: Settings for all services, from `--set`.
        given: The device from `--device`; None: no change.

    Raises:
        CliError: This machine does not have the device, or `--set` names another one.
    """
    if given is None:
        return dict(common)
    device = find_device(given)
    if common.get("device", device) != device:
        raise CliError(f"--device {device} and --set device={clean(common['device'], 60)}: give one of them")
    return {**common, "device": device}
