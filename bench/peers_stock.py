"""The window sent again to stock vLLM, in a process of its own: `bench.peers_engine` starts it.

The strongest form of that peer: frames are images of a prompt, prefix caching is on, every frame has a name,
so that vLLM neither hashes nor prepares nor encodes it a second time, and the first question of a window
fills the prefix cache for the others. It reads a job as JSON and writes a line of JSON for every camera.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lookout.models.windows import Layout

SIZE: Final = 168  #: height and width of the small model's input: 6 x 6 tokens a frame
MARKS: Final = 2  #: rows that vLLM puts around an image
ROWS: Final = 4096  #: of the longest prompt, and of a step


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids around the frames of a window; vLLM puts the marks of an image around each.

    Attributes:
        prefix: Before the first frame.
        labels: Before each frame.
        questions: Behind the last frame, one each.
        image: Stands for an image.
        answers: Yes and no.
    """

    prefix: list[int]
    labels: list[list[int]]
    questions: list[list[int]]
    image: int
    answers: list[int]

    @classmethod
    def of(cls, layout: Layout, frames: int, questions: Sequence[Sequence[int]], image: int) -> Prompt:
        """The prompt with as many rows as `layout` has.

        Args:
            layout: Of our engine.
            frames: Of a window.
            questions: Token ids behind the window.
            image: The token that stands for an image.
        """
        labels = []
        for number in range(1, frames + 1):
            ids = () if layout.label is None else layout.label.ids(number)
            rows = len(ids) + len(layout.frame_open) + len(layout.frame_close)
            labels.append([*ids][: rows - MARKS])
        return cls(
            list(layout.prefix), labels, [list(ids) for ids in questions], image, [layout.yes, layout.no]
        )


def answered(
    folder: Path, prompt: Prompt, frames: Sequence[Path], cut: tuple[int, int], windows: int
) -> Iterator[list[dict[str, Any]]]:
    """The windows of several cameras by one stock vLLM, in a process of its own.

    Args:
        folder: The checkpoint.
        prompt: Around the frames.
        frames: A file for every camera, uint8 [frames, height, width, 3].
        cut: Blocks of a window, frames of a block.
        windows: At most so many whole windows.

    Yields:
        For every camera its windows: CPU seconds, rows computed and found by question, p(yes).
    """
    job = {
        "folder": str(folder),
        "prompt": asdict(prompt),
        "frames": [str(path) for path in frames],
        "cut": cut,
        "windows": windows,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, "-m", "bench.peers_stock"]
    child = subprocess.run(
        command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    for line in child.stdout.splitlines():
        if line.startswith("[{"):
            yield json.loads(line)


def small_checkpoint(tiny: Path, folder: Path) -> Path:
    """A random checkpoint with the proportions of a 7B and its tower: `bench.windows` says why these numbers.

    Args:
        tiny: The trained model, for everything else.
        folder: Where it is kept; made where it is not there.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    from bench.windows import SHAPES

    if (folder / "config.json").is_file():
        return folder
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(tiny, part, ignore=shutil.ignore_patterns("*.safetensors", "watchbench.json"))
    config, shape = AutoConfig.from_pretrained(tiny), SHAPES["small"]
    text = config.text_config
    text.hidden_size, text.intermediate_size = shape["hidden"], shape["intermediate"]
    text.num_attention_heads, text.num_key_value_heads = shape["heads"], shape["kv_heads"]
    text.num_hidden_layers = text.max_window_layers = shape["layers"]
    text.layer_types = ["full_attention"] * shape["layers"]
    config.vision_config.image_size = [SIZE, SIZE]
    config.image_seq_length = (SIZE // config.vision_config.patch_size[0] // 2) ** 2
    config.dtype = torch.float32
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(part)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"):
        told = json.loads((part / name).read_text())
        told |= {"size": {"height": SIZE, "width": SIZE}} if "size" in told else {}
        told |= {"image_seq_length": config.image_seq_length} if "image_seq_length" in told else {}
        (part / name).write_text(json.dumps(told))
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)
    return folder


class Stock:
    """Stock vLLM on a checkpoint, in this process and on one thread.

    Args:
        folder: The checkpoint.
        prompt: Around the frames.
        frames: Of a window.
    """

    def __init__(self, folder: str, prompt: Prompt, frames: int) -> None:
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
        os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        from vllm import LLM, SamplingParams

        self.prompt = prompt
        self.sampling = SamplingParams(
            max_tokens=1, temperature=0, logprob_token_ids=list(prompt.answers), detokenize=False
        )
        self.llm = LLM(
            folder,
            dtype="float32",
            enforce_eager=True,
            enable_prefix_caching=True,
            limit_mm_per_prompt={"image": frames, "video": 0},
            max_model_len=ROWS,
            max_num_batched_tokens=2 * ROWS,
            block_size=32,
            kv_cache_memory_bytes=1 << 29,
            logprobs_mode="raw_logits",
        )

    def window(self, frames: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, Any]:
        """One window, all questions."""
        from PIL import Image

        prompt, rows = self.prompt, list(self.prompt.prefix)
        for label, _ in zip(prompt.labels, frames, strict=True):
            rows += [*label, prompt.image]
        images = [Image.fromarray(frame) for frame in frames]
        asks = [
            {
                "prompt_token_ids": [*rows, *question],
                "multi_modal_data": {"image": images},
                "multi_modal_uuids": {"image": list(names)},
            }
            for question in prompt.questions
        ]
        start = time.process_time()
        outputs = self.llm.generate(asks[:1], self.sampling, use_tqdm=False)
        outputs += self.llm.generate(asks[1:], self.sampling, use_tqdm=False)
        seconds = time.process_time() - start
        logits = [[output.outputs[0].logprobs[0][i].logprob for i in prompt.answers] for output in outputs]
        return {
            "seconds": seconds,
            "rows": [len(output.prompt_token_ids) for output in outputs],
            "cached": [output.num_cached_tokens or 0 for output in outputs],
            "p": [1 / (1 + float(np.exp(no - yes))) for yes, no in logits],
        }


def main() -> None:
    """Do the job."""
    job = json.loads(sys.stdin.read())
    blocks, samples = job["cut"]
    stock = Stock(job["folder"], Prompt(**job["prompt"]), blocks * samples)
    for path in job["frames"]:
        frames, found = np.load(path), []
        for window in range(min(job["windows"], len(frames) // samples - blocks + 1)):
            shown = range(window * samples, (window + blocks) * samples)
            found.append(stock.window([frames[i] for i in shown], [f"{Path(path).stem}-{i}" for i in shown]))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
