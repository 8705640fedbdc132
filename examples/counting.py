"""Count in every window of a video, with a question that has allowed answers instead of yes and no."""

from __future__ import annotations

import sys

import lookout

QUESTION = "How many people are in view? [0..5] when count >= 3"


def likeliest(video: str, model: str) -> None:
    """Print the likeliest count in every window of a video."""
    with lookout.Pipeline(model, questions=[QUESTION]) as pipeline:
        for verdict in pipeline.watch(video):
            count = max(verdict.answers, key=verdict.answers.__getitem__)
            print(f"{verdict.time:.0f} s: {count} ({verdict.answers[count]:.0%}), p = {verdict.p_yes:.2f}")


if __name__ == "__main__":
    likeliest(sys.argv[1], sys.argv[2])
