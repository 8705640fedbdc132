"""Questions as tokens, and the probabilities of allowed answers from logits.

The tokens of all allowed answers form a small tree. At a node where answers diverge, the logits after the
question and the tokens up to the node are needed. Their softmax over the tokens that lead to an allowed
answer gives the probability of each branch. An answer's probability is the product along its path: the
probability that a model which may write only allowed answers writes this one. If all answers begin with
different tokens, the logits after the question suffice.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from lookout.models.engines.types import Answer, PlanError
from lookout.models.windows import Layout
from lookout.structured import NO_TEXT, StructuredQuestion, StructureError, structure_of

Suffix = tuple[int, ...]
"""Token ids that follow a window: question head, question, question tail, and tokens of an answer."""
_END: Final = -1
"""In place of a token: the answer ends here."""


@dataclass(frozen=True, slots=True)
class AnswerNode:
    """A node of the tree where answers diverge.

    Attributes:
        path: Token ids from the root to this node.
        choices: Token ids of each branch: one token, or, if an answer ends here, every token that ends a
            text.
    """

    path: Suffix
    choices: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of all branches, in order."""
        return tuple(token for choice in self.choices for token in choice)

    def shares(self, logits: Sequence[float]) -> list[float]:
        """Return the probability of each branch, from the logits of `tokens`."""
        highest, at = max(logits), 0
        weights = []
        for choice in self.choices:
            weights.append(sum(math.exp(logit - highest) for logit in logits[at : at + len(choice)]))
            at += len(choice)
        total = sum(weights)
        return [weight / total for weight in weights]


@dataclass(frozen=True, slots=True)
class AnswerTree:
    """The allowed answers of a question as tokens.

    Attributes:
        nodes: The nodes where answers diverge, shorter paths first.
        routes: For each answer, the (node, branch) pairs on its path from the root.
    """

    nodes: tuple[AnswerNode, ...]
    routes: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, answers: Sequence[Suffix], ends: tuple[int, ...]) -> AnswerTree:
        """Build the tree of the allowed answers, which must all differ.

        Args:
            answers: Token ids of each answer.
            ends: Tokens that end a text.
        """
        following: dict[Suffix, list[int]] = {}
        for answer in answers:
            for count in range(len(answer) + 1):
                token = answer[count] if count < len(answer) else _END
                tokens = following.setdefault(answer[:count], [])
                if token not in tokens:
                    tokens.append(token)
        parting = sorted(
            ((path, tokens) for path, tokens in following.items() if len(tokens) > 1),
            key=lambda node: (len(node[0]), node[0]),
        )
        nodes = tuple(
            AnswerNode(path, tuple(ends if token == _END else (token,) for token in tokens))
            for path, tokens in parting
        )
        routes = []
        for answer in answers:
            steps = []
            for number, (path, tokens) in enumerate(parting):
                if answer[: len(path)] == path:
                    token = answer[len(path)] if len(path) < len(answer) else _END
                    steps.append((number, tokens.index(token)))
            routes.append(tuple(steps))
        return cls(nodes, tuple(routes))

    def shares(self, logits: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Return the probability of each answer, from the logits of every node's tokens."""
        parts = [node.shares(own) for node, own in zip(self.nodes, logits, strict=True)]
        return tuple(math.prod(parts[node][branch] for node, branch in route) for route in self.routes)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question as tokens.

    Attributes:
        suffixes: The token sequences to compute after the window: one for a yes/no question, else one per
            node of the tree.
        structure: The allowed answers; None for a yes/no question.
        tree: The allowed answers as tokens.
    """

    suffixes: tuple[Suffix, ...]
    structure: StructuredQuestion | None = None
    tree: AnswerTree | None = None

    @property
    def tokens(self) -> int:
        """Number of rows that the question adds."""
        return sum(map(len, self.suffixes))

    def read(self, last: torch.Tensor, head: torch.Tensor) -> list[list[float]]:
        """Compute the logits of every node's tokens.

        Args:
            last: Normed states [suffixes, hidden] at the suffixes' ends.
            head: The head's weight [vocabulary, hidden].
        """
        assert self.tree is not None
        # One product per node, so that its bits do not depend on the other questions.
        parts = [
            torch.nn.functional.linear(
                state, head.index_select(0, torch.tensor(node.tokens, device=head.device))
            )
            for node, state in zip(self.tree.nodes, last, strict=True)
        ]
        joined = torch.cat(parts).double().cpu()  # one copy from the device
        return [own.tolist() for own in torch.split(joined, [len(part) for part in parts])]


def tokens_of_question(text: str, tokenizer: Any, layout: Layout) -> AskedQuestion:
    """Turn a question into tokens.

    Args:
        text: The question, which may be a structured one.
        tokenizer: The checkpoint's tokenizer.
        layout: The checkpoint's prompt layout.

    Raises:
        PlanError: The question is empty, or the tokenizer cannot tell its answers apart.
    """
    structure = structure_of(text)
    prompt = text if structure is None else structure.prompt
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    suffix = (*layout.question_head, *(int(i) for i in ids), *layout.question_tail)
    if not suffix:
        raise PlanError("the question is empty")
    if structure is None:
        return AskedQuestion((suffix,))
    answers = [
        tuple(int(i) for i in tokenizer.encode(answer, add_special_tokens=False))
        for answer in structure.answers
    ]
    ends = (*layout.stop, *([] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]))
    ends = tuple(dict.fromkeys(ends))
    _check_answers(structure.answers, answers, ends, getattr(tokenizer, "unk_token_id", None))
    tree = AnswerTree.of(answers, ends)
    return AskedQuestion(tuple((*suffix, *node.path) for node in tree.nodes), structure, tree)


def question_fault(text: str, *, tokenizer: Any, layout: Layout) -> str | None:
    """Return why a structured question cannot be asked with this tokenizer and prompt; None if it can, and
    for every yes/no question."""
    try:
        if structure_of(text) is not None:
            tokens_of_question(text, tokenizer, layout)
    except (PlanError, StructureError) as error:
        return str(error)
    return None


def _check_answers(
    texts: Sequence[str], answers: Sequence[Suffix], ends: tuple[int, ...], unknown: int | None
) -> None:
    """Check that a tokenizer can tell answers apart.

    Raises:
        PlanError: The tokenizer cannot; the message names the answers.
    """
    for place, (text, ids) in enumerate(zip(texts, answers, strict=True)):
        if not ids or unknown in ids:
            raise PlanError(f"the model's tokenizer has no tokens for the answer “{text}”: choose another")
        if ids in answers[:place]:
            twin = texts[answers.index(ids)]
            raise PlanError(
                f"the model's tokenizer has the same tokens for the answers “{twin}” and “{text}”: change "
                "one of them"
            )
        longer = next(
            (name for name, path in zip(texts, answers, strict=True) if path[: len(ids)] == ids != path),
            None,
        )
        if longer is not None and not ends:
            raise PlanError(
                f"the answer “{longer}” begins with the answer “{text}”, and the model has no token that "
                "ends a text: change one of them"
            )


def in_order(asked: Sequence[AskedQuestion]) -> list[Suffix]:
    """Return the suffixes of several questions: the first suffix of each, then all remaining ones."""
    further = [suffix for question in asked for suffix in question.suffixes[1:]]
    return [*(question.suffixes[0] for question in asked), *further]


def places_of(asked: Sequence[AskedQuestion]) -> Iterator[list[int]]:
    """Yield, for each question, the indices of its suffixes in `in_order`."""
    at = len(asked)
    for number, question in enumerate(asked):
        count = len(question.suffixes) - 1
        yield [number, *range(at, at + count)]
        at += count


def structured_answer(identity: str, asked: AskedQuestion, logits: Sequence[Sequence[float]]) -> Answer:
    """Return the answer to a structured question.

    Args:
        identity: The question's id.
        asked: The question as tokens.
        logits: Logits of every node's tokens.
    """
    assert asked.structure is not None
    assert asked.tree is not None
    shares = asked.tree.shares(logits)
    p = asked.structure.p_yes(shares)
    yes, no = (math.log(max(part, sys.float_info.min)) for part in (p, 1 - p))
    return Answer(identity, p, yes, no, tokens=asked.tokens, shares=shares)


def check_writable(text: str) -> None:
    """Check that a question does not list its answers, because generated text is not limited to them.

    Raises:
        PlanError: The question lists its answers.
    """
    if structure_of(text) is not None:
        raise PlanError(NO_TEXT)
