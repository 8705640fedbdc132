"""Ask several questions about a recording: python examples/analyze.py clip.mp4"""

import sys

import lookout


def main(path: str) -> None:
    found = lookout.analyze(path, ["Is a person in view?", "Is a vehicle in view?"], fps=2)
    for answer in found.answers:
        print(f"p(yes) {answer.p_yes:.2f}  {answer.question}  yes at {answer.seen_s}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
