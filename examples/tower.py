"""Encode half of a frame's patches with a model's own vision tower: python examples/tower.py"""

import numpy as np

from lookout.models import find_model
from lookout.models.families import load_tower
from lookout.models.vision import FrameInput


def main() -> None:
    tower = load_tower(find_model())  # a checkpoint folder; device="cuda", dtype=torch.bfloat16 on a GPU
    keep = np.zeros((4, 4), bool)
    keep[:2] = True  # a bit for each visual token: the upper half
    pixels = np.zeros((1, 112, 112, 3), np.uint8)  # a frame, or the pair that some families take
    [frame] = tower.encode([FrameInput(pixels, keep)])  # frames of any cameras are one batch
    print(frame.tokens.shape)  # a row for each kept token


if __name__ == "__main__":
    main()
