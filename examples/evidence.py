"""Ask a question about a recording and see why the answer is yes or no.

python examples/evidence.py clip.mp4 "Is anyone lying on the ground?" why.png

The picture shows the moments that the answer is based on, in order of time.
"""

import sys

import numpy as np
from PIL import Image

import lookout

SIZE = (168, 168)


def main(clip: str, question: str, picture: str) -> None:
    answer = lookout.analyze(clip, [question]).answers[0]
    print(f"p(yes) {answer.p_yes:.2f}  {question}")
    moments = sorted(time for time, share in answer.seen_s)[:7]
    frames = lookout.VideoReader(clip).read(times_s=moments, size=SIZE).pixels
    Image.fromarray(np.concatenate(list(frames), 1)).save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
