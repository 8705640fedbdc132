"""`python -m tests.fleet.faults.scarce STAGE FOLDER`: a service that may run out of memory.

It does while the file FOLDER/STAGE is there. The real tower, engine or folder of chapters works, and one
tensor operation of each call fails, another one each time (`tests.out_of_memory`)."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lookout.runtime.worker import main
from lookout.wire import Stage
from tests.out_of_memory import OutOfMemoryAt

#: tensor operations of a call of each method, about: one beyond the last never fails
OPERATIONS: Final = {"encode": 400, "run": 400, "rows": 12, "add": 1200, "seal": 15_000}
SCARCE = (Stage.PRUNE_ENCODE, Stage.PREFILL)


def shortage(folder: Path, stage: Stage) -> Path:
    """The file whose presence makes a service run out of memory."""
    return folder / stage.value


def scarce(make: Callable[..., Any], file: Path, *methods: str) -> Callable[..., Any]:
    """What `make` makes, with methods that run out of memory while `file` is there."""
    chance = random.Random(str(file))

    def failing(call: Callable[..., Any], operations: int) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            if not file.exists():
                return call(*arguments, **options)
            with OutOfMemoryAt(chance.randint(1, operations)):
                return call(*arguments, **options)

        return run

    def made(*arguments: Any, **options: Any) -> Any:
        real = make(*arguments, **options)
        for method in methods:
            setattr(real, method, failing(getattr(real, method), OPERATIONS[method]))
        return real

    return made


def run(stage: Stage, folder: Path) -> None:
    """Run the service of `stage` until it is stopped."""
    file = shortage(folder, stage)
    if stage is Stage.PRUNE_ENCODE:
        from lookout.services.prune_encode import __main__ as prune_encode
        from lookout.services.prune_encode.settings import PruneEncodeSettings

        prune_encode.load_tower = scarce(prune_encode.load_tower, file, "encode")
        main(stage, PruneEncodeSettings, prune_encode.make_handler)
    elif stage is Stage.PREFILL:
        from lookout.services.prefill import __main__ as prefill
        from lookout.services.prefill.settings import PrefillSettings

        prefill.load_engine = scarce(prefill.load_engine, file, "run", "rows")
        prefill.ChapterFolder = scarce(prefill.ChapterFolder, file, "add", "seal")  # type: ignore[assignment,misc]
        main(stage, PrefillSettings, prefill.make_handler)
    raise SystemExit(f"{stage} has no model")


if __name__ == "__main__":
    run(Stage(sys.argv[1]), Path(sys.argv[2]))
