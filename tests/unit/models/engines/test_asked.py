"""Probabilities of allowed answers, against an oracle that runs the stock model for every answer in full."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lookout.models.engines import PlanError, Question, TextSettings, WindowRequest
from lookout.models.engines.asked import AnswerTree, tokens_of_question
from lookout.models.families import load_layout, load_tokenizer
from lookout.models.windows import Planner, WindowSettings
from lookout.structured import structure_of
from tests.tiny_models import FAMILIES, checkpoint
from tests.unit.models.engines.scenes import block, engine, stock_logits
from tests.unit.models.engines.test_memory_ask import engine as memory_engine, remembered

# The tiny tokenizers have one token a byte: digits are single tokens, 1 begins 10, and open parts from off.
COUNT = Question("count", "How many people? [0..5] when count >= 3")
TENS = Question("tens", "How many people? [0, 1, 2, 10, 11, 100] when count >= 10")
GATE = Question("gate", "Is the gate open? [open, off, ajar, opened] when class in {open, ajar}")
YES = Question("yes", "Is a person in view?")

Logits = Callable[[Sequence[int]], torch.Tensor]


def enumerated(answers: Sequence[tuple[int, ...]], ends: set[int], logits: Logits) -> list[float]:
    """Of each answer the product over all its tokens and its end: at each the probability among what goes on
    to some allowed answer, read from a forward pass of the whole answer so far."""
    out = []
    for answer in answers:
        p = 1.0
        for count in range(len(answer) + 1):
            alive = [other for other in answers if other[:count] == answer[:count]]
            after = {other[count] for other in alive if len(other) > count}
            closing = ends if any(len(other) == count for other in alive) else set()
            scores = logits(answer[:count]).double().exp()
            total = sum(float(scores[token]) for token in after | closing)
            own = {answer[count]} if count < len(answer) else ends
            p *= sum(float(scores[token]) for token in own) / total
        out.append(p)
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_equal_a_full_forward_pass_for_every_answer(family: str) -> None:
    runner, tokenizer = engine(family), load_tokenizer(checkpoint(family))
    blocks = [block(family, "shares/0", index) for index in range(3)]
    plan = Planner(runner.layout, WindowSettings(3)).plan(blocks)
    answer = runner.run([WindowRequest(plan, blocks, [COUNT, YES, TENS, GATE])])[0].unwrap()
    head = tokenizer.encode
    for question, got in zip([COUNT, TENS, GATE], [answer.answers[i] for i in (0, 2, 3)], strict=True):
        structure = structure_of(question.text)
        assert structure is not None
        prompt = runner.suffix(structure.prompt)
        seen: dict[tuple[int, ...], torch.Tensor] = {}

        def logits(path: Sequence[int], prompt: Any = prompt, seen: Any = seen) -> torch.Tensor:
            key = tuple(path)
            if key not in seen:
                seen[key] = stock_logits(family, plan, blocks, (*prompt, *key))
            return seen[key]

        tokens = [tuple(head(text, add_special_tokens=False)) for text in structure.answers]
        wanted = enumerated(tokens, {*runner.layout.stop, tokenizer.eos_token_id}, logits)
        assert got.shares == pytest.approx(wanted, abs=1e-5)
        assert sum(got.shares) == pytest.approx(1, abs=1e-9)
        accepted = [p for p, yes in zip(wanted, structure.accepted, strict=True) if yes]
        assert got.p_yes == pytest.approx(sum(accepted), abs=1e-5)
        assert math.exp(got.yes_logit) == pytest.approx(got.p_yes)
        again = runner.ask(plan, [question]).answers[0]
        assert again.shares == pytest.approx(got.shares, abs=1e-6)
    runner.close_stream("shares/0")


def test_single_tokens_cost_one_question_and_others_one_more_for_each_place_where_they_part() -> None:
    runner = engine("internvl")
    blocks = [block("internvl", "cost/0", index) for index in range(3)]
    plan = Planner(runner.layout, WindowSettings(3)).plan(blocks)
    sizes = {}
    for question in (COUNT, TENS, GATE, YES):
        answer = runner.run([WindowRequest(plan, blocks, [question], keep=False)])[0].unwrap()
        assert answer.cost.tokens_new == plan.rows
        assert answer.cost.question_tokens == answer.answers[0].tokens
        sizes[question.id] = answer.cost.question_tokens, len(runner.asked(question.text).suffixes)
    count, tens = structure_of(COUNT.text), structure_of(TENS.text)
    assert count is not None
    assert tens is not None
    assert sizes["count"] == (len(runner.suffix(count.prompt)), 1)
    # After the question; after 1 (its end, 10 or 11); after 10 (its end, or 100).
    assert sizes["tens"] == (3 * len(runner.suffix(tens.prompt)) + 1 + 2, 3)
    assert sizes["gate"][1] == 3  # o or a; op or of; open's end or opened
    assert sizes["yes"][1] == 1


def test_a_yes_or_no_question_has_the_same_bits_next_to_a_structured_one() -> None:
    runner = engine("qwen2_vl")
    blocks = [block("qwen2_vl", "bits/0", index) for index in range(2)]
    plan = Planner(runner.layout, WindowSettings(2)).plan(blocks)
    first = runner.run([WindowRequest(plan, blocks, [YES, TENS], keep=False)])[0].unwrap()
    other = runner.run([WindowRequest(plan, blocks, [YES, TENS], keep=False)])[0].unwrap()
    assert first.answers == other.answers
    assert first.answers[0].shares == ()
    alone = runner.run([WindowRequest(plan, blocks, [YES], keep=False)])[0].unwrap().answers[0]
    assert alone.p_yes == pytest.approx(first.answers[0].p_yes, abs=1e-6)


def test_the_past_answers_with_the_probability_of_every_allowed_answer() -> None:
    keeper, _ = remembered("internvl", blocks=6)
    for question in (COUNT, TENS):
        answer = keeper.ask(question.text)
        assert sum(answer.shares) == pytest.approx(1)
        structure = structure_of(question.text)
        assert structure is not None
        assert answer.p_yes == pytest.approx(structure.p_yes(answer.shares))
        assert answer.cost.question_tokens == memory_engine("internvl").asked(question.text).tokens


def test_a_structured_question_gets_no_text() -> None:
    runner = engine("internvl")
    blocks = [block("internvl", "text/0", index) for index in range(2)]
    plan = Planner(runner.layout, WindowSettings(2)).plan(blocks)
    always = [
        Question("a", COUNT.text.replace(">= 3", "< 5"), describe=4),
        Question("b", COUNT.text.replace(">= 3", "= 5"), describe=4),
    ]
    answer = runner.run([WindowRequest(plan, blocks, always)])[0].unwrap()
    assert [one.text for one in answer.answers] == [None, None]
    assert sum(one.p_yes for one in answer.answers) == pytest.approx(1)
    with pytest.raises(PlanError, match="no text"):
        next(runner.write(plan, COUNT.text, TextSettings(tokens=2)))
    runner.close_stream("text/0")


class Words:
    """A stand-in for a tokenizer: a token a word, one token for all words that it does not know."""

    unk_token_id = 0
    eos_token_id = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        known = {"open": 1, "ajar": 2, "shut": 3, "half": 4}
        return [known.get(word, 9 if word == "OPEN" else 0) for word in text.split()]


@pytest.mark.parametrize(
    ("answers", "names"), [("open, slammed", "“slammed”"), ("half, half open", "“half open” begins with")]
)
def test_answers_that_a_tokenizer_cannot_tell_apart_are_refused(answers: str, names: str) -> None:
    from dataclasses import replace

    layout = replace(load_layout(checkpoint("internvl")), stop=())
    first = answers.split(",", maxsplit=1)[0]
    with pytest.raises(PlanError, match=names):
        tokens_of_question(f"Gate? [{answers}] when class = {first}", Words(), layout)
    assert tokens_of_question("Gate? [open, shut] when class = open", Words(), layout).tree is not None


def test_extreme_logits_stay_probabilities() -> None:
    tree = AnswerTree.of([(1,), (1, 2), (3,)], (7, 8))
    assert [node.path for node in tree.nodes] == [(), (1,)]
    shares = tree.shares([[900.0, -900.0], [-900.0, 900.0, 899.0]])
    assert sum(shares) == pytest.approx(1)
    assert shares[2] == pytest.approx(0)
    order = [node.tokens for node in tree.nodes]
    assert order == [(1, 3), (7, 8, 2)]
