"""Finds and checks checkpoint folders; includes the tiny model that comes with Lookout.

The tiny model was trained on rendered scenes and some real clips (docs/watchbench.md). It shows that the
system works, but is not meant for production.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lookout.models.checkpoint import check_checkpoint
from lookout.models.completeness import check_complete
from lookout.models.digest import is_vision_half
from lookout.models.errors import ModelError as ModelError, SamplingError as SamplingError
from lookout.models.questions import (
    UNTRAINED as UNTRAINED,
    ListedQuestion as ListedQuestion,
    QuestionError as QuestionError,
    asks_yes_no as asks_yes_no,
    check_question as check_question,
    check_questions as check_questions,
    find_listed as find_listed,
    is_untrained as is_untrained,
    listed_questions as listed_questions,
    question_quality as question_quality,
    strides_share as strides_share,
    writes_text as writes_text,
)
from lookout.models.window_defaults import (
    SamplingNumbers as SamplingNumbers,
    WindowDefaults as WindowDefaults,
    window_defaults as window_defaults,
)

#: the checkpoint folder that comes with the package
TINY: Final = Path(__file__).parent / "tiny"

#: the demo's questions, by short name
DEMO_QUESTIONS: Final = {
    "person": "Is a person in view?",
    "lying": "Is anyone lying on the ground?",
    "vehicle": "Is a vehicle in view?",
    "many": "Are there many people?",
    "left": "Has an object been left behind?",
}


def find_model(folder: Path | str | None = None) -> Path:
    """Check a checkpoint folder and return its absolute path.

    Args:
        folder: The folder of a vision-language model's checkpoint; None: the model that comes with Lookout.

    Raises:
        ModelError: The folder does not exist, lacks part of a checkpoint, or has a configuration with
            impossible numbers.
    """
    if folder is not None and not isinstance(folder, (str, Path)):
        raise ModelError(f"model must be the folder of a checkpoint, not {folder!r:.80}")
    path = TINY if folder is None else Path(folder)
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    if not (path / "config.json").exists():
        raise ModelError(f"{path} is not a checkpoint: config.json is missing")
    if is_vision_half(path):
        raise ModelError(f"{path} has only the vision half of a checkpoint, which only prune-encode can use")
    check_checkpoint(path)
    check_complete(path)
    window_defaults(path)
    return path.resolve()
