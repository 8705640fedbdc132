"""What docs/papers.md says of committed results is what they say."""

from __future__ import annotations

import re
import string
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest

from bench import pages

SAID = " ".join((pages.ROOT / "docs" / "papers.md").read_text().split())
WINDOWS = " ".join((pages.ROOT / "docs" / "windows.md").read_text().split())


class Cells(string.Formatter):
    """Numbers as the page writes them: "2" is two digits without the zero before the point, "2p" a
    percentage."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """See `string.Formatter`."""
        if not format_spec:
            return str(value)
        number = Decimal(str(value)) * (100 if format_spec.endswith("p") else 1)
        places = Decimal(1).scaleb(-int(format_spec.rstrip("p")))
        text = str(number.quantize(places, ROUND_HALF_UP)).replace("-", "−")
        return text if format_spec.endswith("p") else re.sub(r"^(−?)0\.", r"\1.", text)


POLICIES, LESS = "tables[policies]", "tables[default less others]"
HISTORY, FIRST, SPLITS = "tables[history]", "tables[first token]", "tables[splits deferred]"
RENDERED = "tables[rendered]"
SAVED = "flops_saved[1 questions]"
FIDELITY = "pixels since encoded[all][settings]"
PEERS, LONG_CLIP = "tables[rendered, 80 frames][equal]", "tables[real, 80 frames][equal]"
FAMILY, CROWDS = "tables[families]", "tables[rendered, 80 frames]"
JUMPS, SHORT_JUMPS = "tables[keyframe, 80 frames]", "tables[keyframe, 20 frames]"

RIVALS, OURS, STRIDES = "tables[rivals]", "tables[default less others]", "tables[strides less others]"


def _family(name: str, by: str = "") -> str:
    """What strides have in a family of questions, what the default has, and the difference's interval."""
    row = f"{FAMILY}[{name}]"
    low, high = (f"{row}[strides less default 95 %][{edge}]" for edge in (0, 1))
    return f"{{{row}[strides]:2}} ({{{row}[default]:2}}{by}; {{{low}:2}} to {{{high}:2}})"


# Result, and a sentence of the page with the figure's place in it.
REFERENCES = [
    (
        "codecsight-16",
        f"product questions have {{{POLICIES}[default][product]:2}} by default and "
        f"{{{POLICIES}[full][product]:2}} in dense windows (difference "
        f"{{{LESS}[full][product 95 %][0]:2}} to {{{LESS}[full][product 95 %][1]:2}}",
    ),
    (
        "codecsight-16",
        f"contextual questions have {{{POLICIES}[default][contextual]:2}} by default and "
        f"{{{POLICIES}[full][contextual]:2}} in dense windows (difference "
        f"{{{LESS}[full][contextual 95 %][0]:2}} to {{{LESS}[full][contextual 95 %][1]:2}}",
    ),
    (
        "codecsight-16",
        f'"in view now" has {{{FAMILY}[now][default]:2}} ({{{FAMILY}[now][full]:2}} in dense windows), '
        f'"left" {{{FAMILY}[left-behind][default]:2}} ({{{FAMILY}[left-behind][full]:2}}). '
        f'"count" has {{{FAMILY}[count][default]:2}} ({{{FAMILY}[count][full]:2}};',
    ),
    (
        "codecsight-16",
        f"(difference {{{LESS}[deja-vu][video F1 95 %][0]:3}} to {{{LESS}[deja-vu][video F1 95 %][1]:3}}), "
        f"at {{{LESS}[deja-vu][FLOPs over the default's]:1}} times",
    ),
    (
        "codecsight-16",
        f"anchors alone lose {{{LESS}[anchors alone, reused][product 95 %][0]:3}} to "
        f"{{{LESS}[anchors alone, reused][product 95 %][1]:3}} in product questions",
    ),
    (
        "codecsight-16",
        f"`faithful` is: {{{POLICIES}[faithful][dp]:4}} ({{{POLICIES}[faithful][dp 95 %][0]:4}} to "
        f"{{{POLICIES}[faithful][dp 95 %][1]:4}}) at {{{LESS}[faithful][FLOPs over the default's]:1}} times",
    ),
    ("codecsight-16", f"{{{POLICIES}[codecsight][product]:2}} by the paper's rule"),
    ("codecsight-16", f"keeps {{{POLICIES}[codecsight][tokens kept]:2}} of the tokens"),
    ("codecsight-16", f"computes {{{LESS}[codecsight][FLOPs over the default's]:1}} times as much"),
    (
        "codecsight-16",
        f'"many": {{{FAMILY}[crowd][full]:2}} in dense windows, {{{FAMILY}[crowd][prune only]:2}} under the '
        f"masks, {{{FAMILY}[crowd][default]:2}} by default, {{{FAMILY}[crowd][behind]:2}} where the tower",
    ),
    (
        "codecsight-16",
        f"EVS's tokens in the default's windows have {{{POLICIES}[evs, reused][product]:2}} at "
        f"{{{LESS}[evs, reused][FLOPs over the default's]:2}} of",
    ),
    (
        "codecsight-16",
        f"({{{POLICIES}[vlcache 8][dp]:4}} against {{{POLICIES}[default][dp]:4}}, "
        f"{{{LESS}[vlcache 8][dp 95 %][0]:4}} to {{{LESS}[vlcache 8][dp 95 %][1]:4}}) at "
        f"{{{LESS}[vlcache 8][FLOPs over the default's]:2}} times",
    ),
    (
        "codecsight-16",
        f"|dp| is {{{POLICIES}[default][dp]:4}} ({{{POLICIES}[default][dp 95 %][0]:4}} to "
        f"{{{POLICIES}[default][dp 95 %][1]:4}})",
    ),
    ("codecsight-16", f"at 80 frames | {{{POLICIES}[full][contextual]:2}}, sixteen cameras"),
    ("codecsight-16", f"80 frames | {{{POLICIES}[default][dp]:4}} |"),
    (
        "codecsight-sweeps",
        "F1 is {tables[figure 18][paper, GOP 4][F1]:2}, {tables[figure 18][paper, GOP 8][F1]:2} and "
        "{tables[figure 18][paper, GOP 16][F1]:2} at 4, 8 and 16 samples",
    ),
    (
        "codecsight-sweeps",
        "(|dp| {tables[figure 18][paper, GOP 4][dp]:4}, {tables[figure 18][paper, GOP 8][dp]:4} and "
        "{tables[figure 18][paper, GOP 16][dp]:4})",
    ),
    (
        "codecsight-16",
        f"sixteen frames from the front reach {{{POLICIES}[front 16][dp]:4}} on the same cameras, at "
        f"{{{LESS}[front 16][FLOPs over the default's]:1}} times",
    ),
    ("codecsight-16", f"{{{POLICIES}[default][dp]:4}} on sixteen ([page](results/codecsight-16.md))"),
    (
        "anchors",
        "{tables[rendered: reuse][anchor 8][dp]:4} on {tables[rendered][anchor 8][cameras]} ([page]"
        "(results/anchors.md))",
    ),
    (
        "windows_fidelity-80",
        f"{{{FIDELITY}[frame front 2 +0.1][dp]:4}} on {{pixels since encoded[rendered][cameras]:0}} rendered "
        "cameras and {pixels since encoded[real][cameras]:0} real one",
    ),
    (
        "cuts",
        f"in {{{JUMPS}[default][at once]:2}} of the windows with the jump and "
        f"{{{JUMPS}[default][soon]:2}} of those behind it, with every token "
        f"{{{JUMPS}[full][at once]:2}} and {{{JUMPS}[full][soon]:2}}, with "
        f"the codec's vectors, which keep {{{JUMPS}[vectors][kept]:2}} of the tokens, "
        f"{{{JUMPS}[vectors][at once]:2}} and {{{JUMPS}[vectors][soon]:2}}. In windows of 20 frames: "
        f"{{{SHORT_JUMPS}[default][at once]:2}} and {{{SHORT_JUMPS}[default][soon]:2}}, with every token "
        f"{{{SHORT_JUMPS}[full][at once]:2}} and {{{SHORT_JUMPS}[full][soon]:2}}",
    ),
    (
        "cuts",
        f"behind it (80 frames: {{{JUMPS}[default][product]:2}}, with every token "
        f"{{{JUMPS}[full][product]:2}}; with one anchor a stride {{{JUMPS}[stride][product]:2}})",
    ),
    (
        "cuts",
        f"answers {{{JUMPS}[newest][at once]:2}} and {{{JUMPS}[newest][soon]:2}} of what the jump changed, "
        f"but has {{{JUMPS}[newest][product]:2}} in the product's questions",
    ),
    (
        "peers_engine",
        f"({{{PEERS}[ours][dp]:4}}; whole frames dropped evenly {{{PEERS}[frames][dp]:4}}, an append-only "
        f"session {{{PEERS}[append][dp]:4}}, EVS {{{PEERS}[evs][dp]:4}}) or takes less time "
        f"({{{PEERS}[frames][time_over_ours]:1}}, {{{PEERS}[append][time_over_ours]:1}} and "
        f"{{{PEERS}[evs][time_over_ours]:1}} times ours)",
    ),
    (
        "peers_engine",
        f"({{{LONG_CLIP}[append][dp]:4}}, {{{LONG_CLIP}[frames][dp]:4}} and {{{LONG_CLIP}[evs][dp]:4}} "
        f"against {{{LONG_CLIP}[ours][dp]:4}})",
    ),
    (
        "crowds",
        f'"many" is {{{CROWDS}[full][crowd]:2}} with every token, {{{CROWDS}[default][crowd]:2}} with one '
        f"anchor a stride, and {{{CROWDS}[one more whole frame][crowd]:2}} with one more whole frame, as "
        f"the default has; {{{CROWDS}[since the anchor][crowd]:2}} where",
    ),
    (
        "anchors",
        f"contextual questions have {{{RENDERED}[anchor 8][contextual]:2}} with it, "
        f"{{{RENDERED}[stride][contextual]:2}} without it, {{{RENDERED}[full][contextual]:2}} in dense "
        f"windows, product questions {{{RENDERED}[anchor 8][product]:2}}, "
        f"{{{RENDERED}[stride][product]:2}} and {{{RENDERED}[full][product]:2}}",
    ),
    (
        "sight-harmless",
        "taken for one in {tables[p(lying) above .5][every token][said]:2} of the windows with every token "
        "and in {tables[p(lying) above .5][pruned][said]:2} under",
    ),
    (
        "codecsight-flops",
        f"`faithful`, which saves {{{SAVED}[faithful, low]:1p}}, {{{SAVED}[faithful, middle]:1p}} and "
        f"{{{SAVED}[faithful, high]:1p}} % at a 7B's shape (the default {{{SAVED}[default, low]:1p}}, "
        f"{{{SAVED}[default, middle]:1p}} and {{{SAVED}[default, high]:1p}})",
    ),
    (
        "memory",
        f"{{{HISTORY}[ours][chosen]:0}} against {{{HISTORY}[everything][chosen]:0}} in order, "
        f"{{{HISTORY}[ours][pairs]:0}} pairs",
    ),
    (
        "memory",
        f"better than token level ({{{HISTORY}[token][ours less it 95 %][0]:2}} to "
        f"{{{HISTORY}[token][ours less it 95 %][1]:2}} more)",
    ),
    (
        "memory",
        f"on the right side {{{HISTORY}[ours][right]:2}} against {{{HISTORY}[everything][right]:2}}",
    ),
    (
        "memory-schemes",
        f"token level {{{FIRST}[token][over ours]:2}} of ours, its frame level "
        f"{{{FIRST}[frame][over ours]:2}}, LiveVLM's {{{FIRST}[compressed][over ours]:2}}, "
        f"StreamMem's {{{FIRST}[agnostic][over ours]:2}}",
    ),
    (
        "memory-schemes",
        f"with ours {{{SPLITS}[ours against eager][splits saved]:1p}} % fewer splits (40 % was the aim) and "
        f"{{{SPLITS}[ours against eager][time saved]:1p}} % less CPU",
    ),
    (
        "memory-schemes",
        f"with the `mosaic` preset {{{SPLITS}[mosaic against mosaic, eager][splits saved]:1p}} % and "
        f"{{{SPLITS}[mosaic against mosaic, eager][time saved]:1p}} %",
    ),
    (
        "sight-20",
        ", ".join(f"{{rendered[{name}]:3}}" for name in ("person", "lying", "vehicle", "many", "left"))
        + " at 20 frames with every token kept; "
        + ", ".join(f"{{pruned[{name}]:3}}" for name in ("person", "lying", "vehicle", "many", "left"))
        + " under the product's masks",
    ),
    (
        "worth",
        "{cameras:0} rendered cameras, {windows:0} windows of 80 frames ([page](results/worth.md); "
        "differences paired by camera): 16 whole frames at even distances cost "
        f"{{{RIVALS}[even 16][flops]:2}} of the language model's FLOPs (the default "
        f"{{{RIVALS}[default][flops]:2}}) and {{{RIVALS}[even 16][tower]:2}} of the tower's "
        f"({{{RIVALS}[default][tower]:2}})",
    ),
    (
        "worth",
        f"They have {{{RIVALS}[even 16][product]:2}} in product questions (the default "
        f"{{{RIVALS}[default][product]:2}}; the default less them {{{OURS}[even 16][product 95 %][0]:2}} to "
        f"{{{OURS}[even 16][product 95 %][1]:2}}) and {{{RIVALS}[even 16][contextual]:2}} in contextual ones "
        f"({{{RIVALS}[default][contextual]:2}}; {{{OURS}[even 16][contextual 95 %][0]:2}} to "
        f"{{{OURS}[even 16][contextual 95 %][1]:2}})",
    ),
    (
        "worth",
        f"costs {{{RIVALS}[strides][flops]:2}} and is not shown to differ from the default: product "
        f"{{{RIVALS}[strides][product]:2}} (strides less default {{{STRIDES}[default][product 95 %][0]:2}} "
        f"to {{{STRIDES}[default][product 95 %][1]:2}}), contextual {{{RIVALS}[strides][contextual]:2}} "
        f"({{{STRIDES}[default][contextual 95 %][0]:2}} to {{{STRIDES}[default][contextual 95 %][1]:2}})",
    ),
    (
        "worth",
        f"last 4, 8 and 16 frames have {{{RIVALS}[last 4][contextual]:2}}, "
        f"{{{RIVALS}[last 8][contextual]:2}} and {{{RIVALS}[last 16][contextual]:2}} in contextual questions",
    ),
    ("worth", f"what stands still has {_family('static-only', ' by default')}"),
    ("worth", f"order has {_family('order')}"),
    ("worth", f"what was left has {_family('left-behind')}"),
    ("worth", f"count {_family('count')}"),
]


@pytest.mark.parametrize(("result", "template"), REFERENCES)
def test_a_figure_of_the_page_is_that_of_its_result(result: str, template: str) -> None:
    said = Cells().vformat(template, (), pages.results()[result].figures)
    assert said in SAID, f"docs/papers.md has no {said!r}, which is what {result} says"


def test_strides_differ_from_the_default_in_the_families_that_the_page_names() -> None:
    families = pages.results()["worth"].figures["tables"]["families"]
    edges = {name: row["strides less default 95 %"] for name, row in families.items()}
    assert {name for name, edge in edges.items() if edge and edge[1] < 0} == {"static-only"}
    assert {name for name, edge in edges.items() if edge and edge[0] > 0} == {"order"}


def test_intervals_of_the_simplest_rivals_can_be_drawn_again() -> None:
    """Of every camera, what every interval of the page is drawn from."""
    figures = pages.results()["worth"].figures
    assert figures["cameras"] >= 40
    for name, row in figures["tables"]["rivals"].items():
        cameras = figures[pages.BY_CAMERA][name]
        assert len(cameras) == figures["cameras"]
        counts = [[int(n) for n in cell.split("/")] for told in cameras.values() for cell in told.split()]
        right, all_of = sum(hit + quiet for hit, _, _, quiet in counts), sum(map(sum, counts))
        assert row["accuracy"] == round(right / all_of, 4)


def test_what_is_said_of_audits_is_their_result() -> None:
    audits = pages.results()["windows_fidelity-20"].figures["pixels since encoded"]["all"]["audits"]
    share = f"{audits['above 0.05']:.0%}".replace("%", " %")
    assert f"an audit above its limit? | {share} of the continued windows, over all cameras" in WINDOWS


def test_numbers_are_written_as_on_the_page() -> None:
    assert (
        Cells().format("{0:2} {1:2} {2:1p} {3:0} {4:2}", 0.861, -0.04, 0.8061, 1.0, 0.955)
        == ".86 −.04 80.6 1 .96"
    )
