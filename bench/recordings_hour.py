"""An hour of 1080p video, asked one yes/no question at 1 FPS, from the command's start to its answer: a part
of `make bench-recordings`.

Each way runs in a separate process on two recordings of different length, made of the same packets. The time
for an hour is that of the longer recording plus the cost of each further second, so start, imports and
loading count once. All ask the bundled model, in parts of 20 frames.

- `ours`: `lookout analyze` with its defaults.
- `torchcodec`: torchcodec decodes frames and resizes them meanwhile; the stock transformers model and
  processor answer, four parts per batch.
- `vllm`: vLLM's own video loader (OpenCV), with each part as a video in a prompt, and all prompts at once.

`vss_h100_s`: NVIDIA's published time for an hour with its blueprint (VSS) on an H100, with a far larger
model. For comparison, the result has the time that a 7B model's arithmetic for the same frames would take us
there, at the share of the peak that the published live figure reaches (`bench.gpu_capacity`).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench import gpu_capacity as gpu
from bench.clips import ffmpeg_links
from bench.results import Results
from bench.shapes import QWEN_7B
from lookout.models import DEMO_QUESTIONS, TINY
from lookout.models.families import load_layout
from tests.tiny_models import checkpoint

WAYS: Final = ("ours", "torchcodec", "vllm")
QUESTION: Final = DEMO_QUESTIONS["person"]
PART, BATCH = 20, 4  #: frames of a part, parts of a batch
HOUR_S: Final = 3600
CHUNK_FRAMES: Final = 80  #: of a chunk of VSS
VSS_H100_S: Final = 108  #: NVIDIA's documentation of VSS: an hour of video summarised on one H100


def measure(results: Results, path: Path, seconds: int, way: str, threads: int) -> None:
    """One way on one recording, unless it was measured.

    Args:
        results: What was measured.
        path: The recording.
        seconds: Its length.
        way: One of `WAYS`.
        threads: For decoding and arithmetic.
    """
    name = _name(seconds, way)
    if name in results:
        return
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if way == "ours":
        command = [str(Path(sys.executable).with_name("lookout")), "analyze", str(path), "-q", QUESTION]
        command += ["--fps", "1", "--fresh", "--json"]
    else:
        command = [sys.executable, "-m", "bench.recordings_hour", way, str(path), str(seconds), str(threads)]
        environment["LD_LIBRARY_PATH"] = ffmpeg_links(path.parent)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    wall_s, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer = json.loads(child.stdout.splitlines()[-1])
    p_yes = answer["answers"][0]["p_yes"] if way == "ours" else answer["p_yes"]
    results.add(name, {"wall_s": wall_s, "cpu_s": cpu_s, "p_yes": p_yes})


def summary(results: Results, lengths: tuple[int, int]) -> dict[str, Any] | None:
    """Seconds of an hour for each way, elapsed and of CPU; None until all are measured."""
    short, long = lengths
    out: dict[str, Any] = {}
    for way in WAYS:
        first, second = (results.found.get(_name(seconds, way)) for seconds in lengths)
        if first is None or second is None:
            return None
        hour = {}
        for clock in ("wall_s", "cpu_s"):
            rate = (second[clock] - first[clock]) / (long - short)
            hour[clock] = round(second[clock] + rate * (HOUR_S - long), 1)
        out[way] = {**hour, "p_yes": round(second["p_yes"], 4)}
    for way in WAYS[1:]:
        out[f"{way}_over_ours"] = round(out[way]["wall_s"] / out["ours"]["wall_s"], 2)
    return {
        **out,
        "measured_s": list(lengths),
        "vss_h100_s": VSS_H100_S,
        "ours_7b_h100_s": round(modelled(), 1),
    }


def modelled() -> float:
    """Seconds of an H100 for the arithmetic of an hour at 1 FPS on a 7B: every frame encoded, parts whole.

    At the share of its FP8 peak that VSS's published number of live streams means; decoding is not in it.
    """
    chunk = gpu.stride_flops(load_layout(checkpoint("internvl")), QWEN_7B, None)
    used_flops_s = gpu.VSS_STREAMS * chunk / gpu.CHUNK_S
    return HOUR_S / CHUNK_FRAMES * chunk / used_flops_s


def _name(seconds: int, way: str) -> str:
    return f"hour {seconds} s {way}"


def by_torchcodec(path: str, seconds: int, threads: int) -> float:
    """The largest p(yes) of any part by torchcodec and the stock model."""
    import torch
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize
    from transformers import AutoModelForImageTextToText, AutoProcessor

    torch.set_num_threads(threads)
    layout = load_layout(TINY)
    processor = AutoProcessor.from_pretrained(TINY)
    model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32).eval()
    side = processor.video_processor.size
    decoder = VideoDecoder(
        path, num_ffmpeg_threads=threads, transforms=[Resize((side["height"], side["width"]))]
    )
    best, text = 0.0, asked(processor)
    for begin in range(0, seconds, PART * BATCH):
        times = [float(second) for second in range(begin, min(begin + PART * BATCH, seconds))]
        frames = decoder.get_frames_played_at(times).data
        videos = [clip for clip in frames.split(PART) if len(clip) == PART] or [frames]
        inputs = processor(
            text=[text] * len(videos), videos=videos, return_tensors="pt", do_sample_frames=False
        )
        with torch.inference_mode():
            logits = model(**inputs, logits_to_keep=1).logits[:, -1]
        best = max(best, float(torch.sigmoid(logits[:, layout.yes] - logits[:, layout.no]).max()))
    return best


def by_vllm(path: str, seconds: int, threads: int) -> float:
    """The largest p(yes) of any part by vLLM's loader and model."""
    del threads  # OMP_NUM_THREADS says it
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    import numpy as np
    from transformers import AutoProcessor
    from vllm import LLM, SamplingParams
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    layout = load_layout(TINY)
    text = asked(AutoProcessor.from_pretrained(TINY))
    llm = LLM(
        str(TINY),
        dtype="float32",
        enforce_eager=True,
        enable_prefix_caching=False,
        limit_mm_per_prompt={"image": 0, "video": 1},
        skip_mm_profiling=True,
        max_model_len=4096,
        max_num_batched_tokens=8192,
        block_size=32,
        kv_cache_memory_bytes=1 << 29,
        logprobs_mode="raw_logits",
    )
    loader = VIDEO_LOADER_REGISTRY.load("opencv")
    frames, _ = loader.load_bytes(Path(path).read_bytes(), num_frames=seconds)
    clips = [frames[begin : begin + PART] for begin in range(0, len(frames), PART)]
    sampling = SamplingParams(max_tokens=1, temperature=0, logprob_token_ids=[layout.yes, layout.no])
    prompts = [{"prompt": text, "multi_modal_data": {"video": clip}} for clip in clips]
    best = 0.0
    for output in llm.generate(prompts, sampling, use_tqdm=False):
        found = output.outputs[0].logprobs[0]
        best = max(best, 1 / (1 + float(np.exp(found[layout.no].logprob - found[layout.yes].logprob))))
    return best


def asked(processor: Any, question: str = QUESTION) -> str:
    """The prompt of a part, by the checkpoint's chat template."""
    content = [{"type": "video"}, {"type": "text", "text": question}]
    message = [{"role": "user", "content": content}]
    return str(processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False))


def main() -> None:
    """Answer by one peer."""
    way, path, seconds, threads = sys.argv[1:]
    answer = {"torchcodec": by_torchcodec, "vllm": by_vllm}[way]
    print(json.dumps({"p_yes": answer(path, int(seconds), int(threads))}), flush=True)


if __name__ == "__main__":
    main()
