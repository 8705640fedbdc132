"""Read frames of recordings in the workers of a PyTorch DataLoader.

    python examples/frames.py clip.mp4 other.mp4 batch.png

The first batch is saved as a picture under the name that ends with .png, one second per row.

Each item is one second of a recording: four frames, uint8 [4, 224, 224, 3] RGB. A worker decodes
from the keyframe before its item, so items can be read in any order.
"""

from __future__ import annotations

import sys

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import lookout

FRAMES, SIZE = 4, (224, 224)


class Seconds(Dataset[np.ndarray]):
    """The whole seconds of some recordings."""

    def __init__(self, paths: list[str]) -> None:
        self.readers = [lookout.VideoReader(path) for path in paths]
        self.items = [(reader, second) for reader in self.readers for second in range(int(reader.duration))]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> np.ndarray:
        reader, second = self.items[index]
        times = [second + step / FRAMES for step in range(FRAMES)]
        return reader.read(times_s=times, size=SIZE, threads=1).pixels


def main() -> None:
    """Read all seconds once, in random order."""
    pictures = [name for name in sys.argv[1:] if name.endswith(".png")]
    clips = [name for name in sys.argv[1:] if name not in pictures]
    loader = DataLoader(Seconds(clips), batch_size=8, shuffle=True, num_workers=2)
    for number, batch in enumerate(loader):
        print(tuple(batch.shape))
        if number == 0:
            sheet = np.concatenate([np.concatenate(list(second), axis=1) for second in batch.numpy()])
            for name in pictures:
                Image.fromarray(sheet).save(name)


if __name__ == "__main__":
    main()
