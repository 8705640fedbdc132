"""Ask questions about a video file, without Kafka: python examples/pipeline.py clip.mp4"""

import sys

import lookout


def main(path: str) -> None:
    with lookout.Pipeline(questions=["Is a person in view?", "Is anyone lying on the ground?"]) as pipeline:
        for verdict in pipeline.watch(path):
            print(f"{verdict.time:7.1f} s  p(yes) {verdict.p_yes:.2f}  {verdict.question}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
