"""Other rules of retrieval on the pairs of pasts of `history.py`, on streams of their own (`streams.RULES`).

- `ours`: the default. `seed N`: the same rule with other draws of k-means, which shows how far equal rules
  lie apart by chance.
- `whole clusters`: no cluster is read in part, so that the budget is not quite filled. `best rows`, `newest
  rows`, `central rows`: of the partial cluster those with the best scores, the newest, those nearest to its
  mean key; ours takes evenly spaced ones.
- `semantic only`: no visual cluster is read whole (the paper). `breadth 4`: the first stage takes half as
  many visual clusters.
- `last row`: the query is that of the question's last row, where p(yes) is read, not the mean over its rows;
  `last row, semantic only`: both.
- `token`, `frame`, `agnostic`, `compressed`, `everything`: as in `history.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from bench.memory.history import chosen_by, fed, flat_choices, pasts, through
from bench.memory.policies import Flat
from bench.memory.quality import proxy_queries
from bench.memory.streams import Spec
from bench.memory.world import OURS, RETRIEVAL, World
from lookout.models.engines.transformers.memory import attention
from lookout.models.engines.transformers.memory.reading import ClusterReader
from lookout.past.memory import Retrieved

RIVALS: Final = ("token", "frame", "agnostic", "compressed", "everything")
SEEDS: Final = (1, 2)
Order = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores of a cluster's keys [n, width] for a query [width]: the highest are read first."""
ORDERS: Final[dict[str, Order | None]] = {
    "whole clusters": None,
    "best rows": lambda keys, query: keys @ query,
    "newest rows": lambda keys, query: torch.arange(len(keys)),
    "central rows": lambda keys, query: torch.cosine_similarity(keys, keys.mean(0)[None]),
}
SETTINGS: Final = {
    "semantic only": replace(RETRIEVAL, whole=0.0),
    "breadth 4": replace(RETRIEVAL, breadth=4.0),
}


class PartReader(ClusterReader):
    """The default's clusters; of one that is read in part, other rows.

    Attributes:
        flat: The keys of all tokens.
        order: Which rows are read first; None: none is.
    """

    flat: Flat
    order: Order | None

    def _choose(self, layer: int, query: torch.Tensor) -> Retrieved:
        found = super()._choose(layer, query)
        if found.rows is None:
            return found
        rows, begin = found.rows.copy(), 0
        for cluster in found.clusters:
            tokens = cluster.slab.tokens
            part = rows[begin : begin + len(tokens)]
            begin += len(tokens)
            may = np.flatnonzero(self.span.holds(self.snapshot.lookup(tokens)[0]))
            wanted = int(part.sum())
            if wanted < len(may):
                part[:] = False
                if self.order is not None:
                    scores = self.order(self.flat.keys[layer][torch.from_numpy(tokens[may])], query)
                    part[may[np.argsort(-scores.numpy(), kind="stable")[:wanted]]] = True
        return replace(found, rows=rows)


def part_reader(flat: Flat, order: Order | None, *arguments: Any, **more: Any) -> PartReader:
    """A reader of other rows of partial clusters."""
    reader = PartReader(*arguments, **more)
    reader.flat, reader.order = flat, order
    return reader


@contextmanager
def last_row() -> Iterator[None]:
    """Memory is searched with the query of the question's last row."""
    usual = attention.mean_query
    attention.mean_query = lambda query, kv_heads: usual(query[:, -1:], kv_heads)
    try:
        yield
    finally:
        attention.mean_query = usual


def rules(world: World, spec: Spec) -> dict[str, Any]:
    """p(yes) of every rule for every history and question of an hour."""
    played = world.stream(spec)
    shots = {}
    for seed in (0, *SEEDS):
        memory = world.memory(played, replace(OURS, seed=seed))
        fed(memory, played.blocks, world)
        shots[seed] = memory.snapshot()
    shot = shots[0]
    flat = Flat.of(played.blocks).until(shot.window[0].first_token)
    proxy, per_frame = proxy_queries(world, shot, flat), flat.count / shot.window[0].first_frame
    rows = []
    for past in pasts(played, shot, flat):
        choices = flat_choices(past.part, proxy, 1, per_frame)
        p = {name: chosen_by(world, shot, past, choices[name]) for name in RIVALS}
        p |= {f"seed {seed}": through(world, shots[seed], past) for seed in SEEDS}
        p["ours"] = through(world, shot, past)
        for name, order in ORDERS.items():
            p[name] = through(world, shot, past, reader=partial(part_reader, flat, order))
        p |= {name: through(world, shot, past, settings) for name, settings in SETTINGS.items()}
        with last_row():
            p["last row"] = through(world, shot, past)
            p["last row, semantic only"] = through(world, shot, past, SETTINGS["semantic only"])
        rows.append(past.row({name: round(value, 6) for name, value in p.items()}))
    return {"stream": spec.name, "rows": rows}
