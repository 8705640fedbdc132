"""The model option of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookout import models
from lookout.cli.options import CliError

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        envvar="LOOKOUT_MODEL_DIR",
        help="Folder of a vision-language model's checkpoint.  [default: the small one included]",
        show_default=False,
    ),
]


def find_model(given: Path | None) -> Path:
    """The folder given, else the small model included.

    Raises:
        CliError: It holds no checkpoint.
    """
    try:
        return models.find_model(given)
    except models.ModelError as error:
        raise CliError(f"{error}: give another folder") from error
