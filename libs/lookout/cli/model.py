"""The model that a local fleet runs when none is named."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from lookout.cli.connect import CliError

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        envvar="LOOKOUT_MODEL_DIR",
        help="Folder of a vision-language model's checkpoint.  [default: the small one that comes along]",
        show_default=False,
    ),
]


def find_model(given: Path | None) -> Path:
    """The folder given, else the small model that comes along. Raises CliError if it holds no checkpoint."""
    folder = given or Path(str(files("watchbench"))) / "weights" / "tolerant"
    if not (folder / "config.json").is_file():
        raise CliError(f"{folder} holds no checkpoint (config.json is missing): give another --model")
    return folder.resolve()
