"""Push video into a session and ask about its newest window: python examples/session.py clip.mp4"""

import sys

import lookout
from lookout.video.segments import cut


def main(path: str) -> None:
    # a model of your own: lookout.Session("/models/...")
    with lookout.Session(fps=2, stride_s=2, window_s=10) as session:
        for segment in cut(path):  # pieces that begin with a keyframe
            for window in session.push(segment.data):  # or frames and times: session.push(frames, times)
                answer = session.ask("Is anyone lying on the ground?")
                print(f"{window.end:5.1f} s  p(yes) {answer.p_yes:.2f}  {answer.basis}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
