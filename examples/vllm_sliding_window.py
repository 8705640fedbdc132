"""Why prefix caching does not help a sliding window: python examples/vllm_sliding_window.py [CHECKPOINT]

Stock vLLM with prefix caching is asked about the last frames of a stream after every slide. Its cached prefix
ends before the first frame that left, so nearly the whole prompt is computed again. Then a `lookout.Session`
is asked about the same windows.
"""

import os
import sys
from pathlib import Path

import numpy as np

import lookout
from lookout.models import find_model

WINDOW_S, STRIDE_S, FPS, SLIDES = 10, 2, 2, 4
QUESTION = "Is a person in view?"


def frames(seconds: float, size: int = 112) -> np.ndarray:
    """Return frames of a square that moves over noise: uint8 [frames, size, size, 3]."""
    count = round(seconds * FPS)
    background = np.random.default_rng(0).integers(0, 200, (size, size, 3), dtype=np.uint8)
    out = np.stack([background] * count)
    for number, frame in enumerate(out):
        left = number * 3 % (size - 30)
        frame[30:60, left : left + 30] = 255
    return out


def stock(folder: Path, video: np.ndarray) -> None:
    """Send every window to stock vLLM, as images in a prompt; prefix caching is on."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from PIL import Image
    from vllm import LLM, SamplingParams

    count = WINDOW_S * FPS
    llm = LLM(
        str(folder), enable_prefix_caching=True, enforce_eager=True, limit_mm_per_prompt={"image": count},
        max_model_len=4096, block_size=32, kv_cache_memory_bytes=1 << 28, dtype="float32",
    )  # fmt: skip
    for slide in range(SLIDES + 1):
        first = slide * STRIDE_S * FPS
        images = [Image.fromarray(frame) for frame in video[first : first + count]]
        shown = "".join(f"Frame{number:03d} <IMG_CONTEXT>\n" for number in range(1, count + 1))
        prompt = {"prompt": f"<|im_start|>user\n{shown}{QUESTION}<|im_end|>\n<|im_start|>assistant\n"}
        prompt["multi_modal_data"] = {"image": images}
        (output,) = llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)
        tokens, cached = len(output.prompt_token_ids), output.num_cached_tokens or 0
        print(f"  slide {slide}: {tokens - cached:5} of {tokens} tokens computed", flush=True)
    llm.llm_engine.engine_core.shutdown()


def sliding(folder: Path, video: np.ndarray) -> None:
    """Push the same frames into a session on vLLM."""
    settings = {"window_s": WINDOW_S, "stride_s": STRIDE_S, "fps": FPS, "options": {"max_rows": 4096}}
    with lookout.Session(folder, engine="vllm", name="gate", **settings) as session:
        slides = 0
        for number, frame in enumerate(video):
            for window in session.push([frame], [number / FPS]):
                cost = window.played.answer.cost
                if window.end - window.start == WINDOW_S and slides <= SLIDES:
                    computed = cost.tokens_new + cost.tokens_refreshed
                    of = f"{cost.tokens_kept} tokens ({window.tokens_total} visual ones before pruning)"
                    p_yes = session.ask(QUESTION).p_yes
                    print(f"  slide {slides}: {computed:5} of {of} computed, p(yes) {p_yes:.3f}", flush=True)
                    slides += 1


def main() -> None:
    folder = find_model(sys.argv[1] if len(sys.argv) > 1 else None)
    video = frames(WINDOW_S + (SLIDES + 1) * STRIDE_S)
    print("stock vLLM with prefix caching, each window sent in full:")
    stock(folder, video)
    print("lookout.Session on vLLM:")
    sliding(folder, video)


if __name__ == "__main__":
    main()
