"""A service loads its model without the parts of torch and transformers that it never calls."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

import lookout
import watchbench
from lookout.models.families.inference import inference_only
from tests.tiny_models import FAMILIES, checkpoint

#: the compiler, sharded tensors, and what the losses of detectors import
LEFT_OUT: Final = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "scipy", "torchvision")
QUESTION: Final = "Is a person in view?"
FILM: Final = sorted((Path(next(iter(watchbench.__path__))) / "films").glob("*.mp4"))[0]
#: prints answers of the model that comes along, the parts that were imported by then, and whether the
#: compiler works afterwards
SERVICE: Final = """
import json, sys
from itertools import islice
from pathlib import Path
import lookout
from lookout.models.engines.transformers import load_engine
from lookout.models.families import load_tower
from lookout.models.families.inference import inference_only

film, question, left_out, *folders = sys.argv[1:]
with inference_only():
    for folder in folders:
        load_tower(Path(folder))
        load_engine(Path(folder)).close()
    pipeline = lookout.Pipeline(questions=[question])
with pipeline:
    answers = [verdict.p_yes for verdict in islice(pipeline.watch(film), 6)]
imported = [name for name in left_out.split() if name in sys.modules]
import torch
from transformers.masking_utils import TransformGetItemToIndex

with TransformGetItemToIndex() as mode:
    print(json.dumps([answers, imported, mode is None or torch._dynamo.is_compiling()]))
"""


@pytest.fixture(scope="module")
def service() -> list[Any]:
    """What a process prints that loads every family as services do."""
    words = [str(FILM), QUESTION, " ".join(LEFT_OUT), *(str(checkpoint(family)) for family in FAMILIES)]
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.long
def test_a_model_loads_and_answers_without_the_parts_that_training_needs(service: list[Any]) -> None:
    answers, imported, is_compiling = service
    assert imported == []
    assert is_compiling is False  # the compiler, and the mode that needs it, are there for who asks later
    with lookout.Pipeline(questions=[QUESTION]) as pipeline:
        assert answers == [verdict.p_yes for verdict in islice(pipeline.watch(FILM), 6)]


ASKED: Final = """
import sys
from lookout.models.families.inference import inference_only

with inference_only():
    import torch
    from transformers import AutoModel  # marks functions

    assert not hasattr(sys.modules["torch._dynamo"], "__file__")
    EXPRESSION
    assert sys.modules["torch._dynamo"].__file__
assert torch._dynamo.__file__
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "expression",
    [
        "torch._dynamo.reset()",
        "import torch._dynamo.config",
        "torch.compile(lambda: 1, backend='eager')()",
    ],
)
def test_a_model_that_asks_more_of_the_compiler_gets_the_real_one(expression: str) -> None:
    script = ASKED.replace("EXPRESSION", expression)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_process_that_has_imported_everything_stays_as_it_is() -> None:
    """A program that uses Lookout as a library may train beside it."""
    import transformers.modeling_utils
    from transformers import utils

    def found() -> list[object]:  # whatever tests before this one have left out of this process
        names = ("is_torch_distributed_available", "is_scipy_available", "is_torchvision_available")
        checks = [getattr(module, name) for module in (utils, utils.import_utils) for name in names]
        return [*checks, sys.modules.get("torch._dynamo")]

    assert transformers.modeling_utils.__file__
    before = found()
    with inference_only():
        assert found() == before
    assert found() == before
