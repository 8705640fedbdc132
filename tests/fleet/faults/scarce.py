"""`python -m tests.fleet.faults.scarce STAGE FOLDER`: a service that may run out of memory.

It does while the file FOLDER/STAGE is there. The real tower or engine runs, and one tensor operation of each
call fails, another one each time (`tests.out_of_memory`)."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lookout.wire import Stage
from lookout.worker import main
from tests.out_of_memory import OutOfMemoryAt

#: tensor operations of a call, about: a later one never fails
OPERATIONS = 400
SCARCE = (Stage.PRUNE_ENCODE, Stage.PREFILL)


def shortage(folder: Path, stage: Stage) -> Path:
    """The file whose presence makes a service run out of memory."""
    return folder / stage.value


class Scarce:
    """An engine or a tower; `method` of it may fail, everything else is the real one's."""

    def __init__(self, real: Any, method: str, file: Path) -> None:
        self._real, self._method, self._file = real, method, file
        self._chance = random.Random(str(file))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        return self._scarce(value) if name == self._method else value

    def _scarce(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            if not self._file.exists():
                return call(*arguments, **options)
            with OutOfMemoryAt(self._chance.randint(1, OPERATIONS)):
                return call(*arguments, **options)

        return run


def run(stage: Stage, folder: Path) -> None:
    """Run the service of `stage` until it is stopped."""
    file = shortage(folder, stage)
    if stage is Stage.PRUNE_ENCODE:
        from lookout.services.prune_encode import __main__ as prune_encode
        from lookout.services.prune_encode.settings import PruneEncodeSettings

        load_tower = prune_encode.load_tower
        prune_encode.load_tower = lambda *given, **more: Scarce(load_tower(*given, **more), "encode", file)
        main(stage, PruneEncodeSettings, prune_encode.make_handler)
    elif stage is Stage.PREFILL:
        from lookout.services.prefill import __main__ as prefill
        from lookout.services.prefill.settings import PrefillSettings

        load_engine = prefill.load_engine
        prefill.load_engine = lambda *given, **more: Scarce(load_engine(*given, **more), "run", file)
        main(stage, PrefillSettings, prefill.make_handler)
    raise SystemExit(f"{stage} has no model")


if __name__ == "__main__":
    run(Stage(sys.argv[1]), Path(sys.argv[2]))
