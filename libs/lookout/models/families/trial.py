"""Tries a checkpoint's chat template and tokenizer in a confined process before this process uses them.

A template is a program and a tokenizer is a list of regular expressions: either may run forever. Started as
`python -m lookout.models.families.trial FOLDER`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from lookout.models.windows.types import WindowError
from lookout.video.sandbox.child import bare_environment
from lookout.video.sandbox.confine import Needs, confine, limit_resources

#: about ten times what the largest published tokenizers need (3 s of CPU, 500 MiB of memory)
CPU_S: Final = 30.0
_MEMORY: Final = 4 << 30
_ADDRESS_SPACE: Final = 64 << 30  # libraries reserve far more than they use
_START_S: Final = 600.0
_TOO_MUCH_MEMORY: Final = 3
_TOO_MANY_STEPS: Final = 4


def try_prompt(folder: Path, cpu_s: float = CPU_S) -> None:
    """Check, in a confined process with limits, that a checkpoint's prompt can be rendered and tokenised.

    Other faults of the folder are reported by the code that loads it.

    Args:
        folder: The checkpoint.
        cpu_s: Maximum CPU seconds.

    Raises:
        WindowError: This takes more CPU time, more than 4 GiB of memory, or too many steps for a pattern.
    """
    command = [sys.executable, "-m", __spec__.name, str(folder.resolve()), str(cpu_s)]
    environment = {**bare_environment(), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    try:
        code = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise WindowError(
            f"{folder}: its chat template or tokenizer did not finish in {_START_S:g} s"
        ) from None
    if code == _TOO_MUCH_MEMORY:
        raise WindowError(f"{folder}: its chat template or tokenizer needs more than {_MEMORY >> 30} GiB")
    if code == _TOO_MANY_STEPS:
        raise WindowError(
            f"{folder}: a pattern of tokenizer.json needs too many steps on the prompt: use the file with "
            "which the model was published"
        )
    if code < 0:  # SIGKILL: the kernel's limit of CPU time
        raise WindowError(
            f"{folder}: its chat template or tokenizer uses more than {cpu_s:g} s of CPU: repair "
            "chat_template and tokenizer.json, or use the files with which the model was published"
        )


def _main(folder: Path, cpu_s: float) -> int:
    """Do the work of the confined process; return its exit code."""
    import transformers  # noqa: F401 - imported before confinement, which hides other folders
    from transformers import AutoTokenizer  # noqa: F401

    from lookout.models.families.layout import PANIC, load_layout, rendered_prompts

    # Downloaded folders consist of links into a store of files.
    folders = {str(folder), *(str(path.resolve().parent) for path in folder.iterdir())}
    limit_resources(_ADDRESS_SPACE, 0, cpu_s, own_memory=_MEMORY)
    confine(strict=False, needs=Needs(code=True, folders=tuple(sorted(folders))))
    try:
        load_layout(folder)
        rendered_prompts(folder)
    except MemoryError:
        return _TOO_MUCH_MEMORY
    except WindowError as error:  # a panic is reported here, any other error by the loading process
        return _TOO_MANY_STEPS if type(error.__cause__).__name__ == PANIC else 1
    except Exception:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), float(sys.argv[2])))
