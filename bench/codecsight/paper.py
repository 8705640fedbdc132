"""The paper's figures beside ours, and what to know of them: rows of the page, made of what was measured."""

from __future__ import annotations

from typing import Any, Final

from bench.windows import LEVELS

COMPONENTS: Final = ("full", "codecsight, whole", "refresh only", "codecsight", "refresh, corner mask")
"""The paper's masks in windows that are computed whole, its refresh with every token, and both."""


def beside_paper(found: dict[str, Any], line: dict[str, Any]) -> dict[str, dict[str, str]]:
    """By figure: what the paper has (InternVL3-14B, UCF-Crime), ours, and what differs.

    Args:
        found: The tables of the bench.
        line: Its last line.
    """
    rows = _of_policies(line) if line["f1"] else {}
    if "figure 14" in found:
        rows |= _by_motion(found["figure 14"])
    return rows | _of_sweeps(found)


def _by_motion(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Figure 14."""
    thirds = [
        f"{level} {row['default: dropped']:.0%}, {row['full: F1']} to {row['default: F1']}"
        for level, row in found.items()
    ]
    return {
        "14, tokens dropped and F1 by thirds": {
            "paper": "50, 27, 13 %; F1 falls by 0.07, 0.04, 0.08",
            "ours": "; ".join(thirds),
            "differs": "ours: rendered cameras, which stand still, and few of them in each third",
        }
    }


def _of_policies(line: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Figures 12, 13 and 15."""
    f1, saved = line["f1"], line["flops_saved"]["1 questions"]

    def told(*names: str) -> str:
        return ", ".join(f"{name} {f1[name]}" for name in names)

    def levels(name: str) -> str:
        return name + " " + ", ".join(f"{saved[f'{name}, {level}']:.1%}" for level in LEVELS)

    return {
        "12, F1 by video": {
            "paper": "full 0.89, CodecSight 0.81",
            "ours": told("full", "codecsight", "default"),
            "differs": "ours: rendered cameras, 15 questions, a tiny model trained on pruned windows",
        },
        "13b, FLOPs saved": {
            "paper": "87 %",
            "ours": f"{levels('default')}; {levels('codecsight')} (clips: walk, night, fall)",
            "differs": "ours: a 7B model's shape and one question; key windows and audits are included",
        },
        "15, components": {
            "paper": "full 0.89, prune 0.87, refresh 0.79, both 0.81",
            "ours": told(*COMPONENTS),
            "differs": "our last figure: the paper's rule with an attention mask aligned to the corner",
        },
    }


def _of_sweeps(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Figures 16 to 18: FLOPs where the paper has latency."""
    out = {}
    for figure, paper, table, column, differs in (
        (
            "16, stride",
            "F1 0.84 at 100 %, 0.89 at 20 %; latency 1.45 at 100 %, 0.92 at 10 %",
            "figure 16",
            "default: F1",
            "ours: FLOPs instead of latency",
        ),
        (
            "17, threshold",
            "F1 0.81 at 0.25 px, 0.73 at 5 px; latency 1 and 0.83",
            "figure 17",
            "F1",
            "ours: FLOPs instead of latency; also thresholds of luma, with the default's windows",
        ),
        (
            "18, GOP",
            "F1 0.77, 0.79, 0.81 at 4, 8, 16; latency 1.33 at 4",
            "figure 18",
            "F1",
            "ours: the same pictures, FLOPs instead of latency; `dp`: whether more refresh errs less",
        ),
    ):
        rows = found.get(table, {})
        if rows:
            ours = "; ".join(f"{name}: F1 {row[column]}, FLOPs {row['FLOPs']}" for name, row in rows.items())
            out[figure] = {"paper": paper, "ours": ours, "differs": differs}
    return out
