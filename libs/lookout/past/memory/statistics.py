"""Mean and variance of clusters, and the variance limit that depends on a cluster's size (Mosaic, equations 1
to 5).

The equations are missing in the available text of the paper, and are reconstructed here from its words:

- Eq. 1: the mean of the members.
- Eq. 2: the variance, which is the mean squared distance from the mean.
- Eq. 3 and 4: the updates of mean and variance by one member. Here, both follow from sums of unit vectors
  (`unit_variance`).
- Eq. 5: the limit, which moves from a strict to a loose value as a cluster grows. Only its symbols are known,
not
  its exact form.

Eq. 1 to 4 are checked against batch statistics.
"""

from __future__ import annotations

import numpy as np
import torch

from lookout.past.memory.types import ThresholdRule


def unit(x: torch.Tensor) -> torch.Tensor:
    """Scale the rows of x [..., width] to length 1; a row of zeros stays zero."""
    out: torch.Tensor = x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return out


def unit_variance(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the variance [clusters] of unit vectors, given their sums [clusters, width] and numbers.

    It is 1 - |sum / n|^2, which equals Eq. 2 for unit vectors.
    """
    mean = total / count.clamp(min=1)[:, None].to(total.dtype)
    return (1 - (mean * mean).sum(-1)).clamp(min=0)


def limit(
    count: torch.Tensor, strict: float, loose: float, transition: float, rule: ThresholdRule
) -> torch.Tensor:
    """Return the variance beyond which a cluster of `count` members is too wide (Eq. 5).

    `FORMULA`: loose - (loose - strict) exp(-n / lambda), strict for small clusters. `WORDS`: the two ends are
    swapped, so that large clusters are refined more readily.
    """
    start, end = (strict, loose) if rule is ThresholdRule.FORMULA else (loose, strict)
    return end + (start - end) * torch.exp(-count.to(torch.float64) / transition)


TIE = 2.0**-18
"""Two scores count as equal if they differ by less than this share of the largest score, because means of
equal rows differ by rounding."""


def scores_of(keys: torch.Tensor, query: torch.Tensor) -> np.ndarray:
    """Return the dot products of keys [n, width] with a query [width], in whole steps of `TIE`, float64 [n].

    Equal keys get equal scores, because each row is summed separately. A matrix product would not guarantee
    that.
    """
    products = keys.double().numpy() * query.double().numpy()
    scores: np.ndarray = products.sum(1)
    largest = float(np.abs(scores).max(initial=0.0))
    return np.rint(scores / (largest * TIE)) if largest else scores


def nearest(x: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Return the number of the most similar centre for each row, int64 [n]; the first centre wins a tie.

    Args:
        x: Unit rows, [n, width].
        centres: Unit centres, [clusters, width].
    """
    return (x @ centres.T / TIE).round().argmax(1)


def kmeans(x: torch.Tensor, clusters: int, seed: int, iterations: int = 8) -> torch.Tensor:
    """Run cosine k-means with k-means++ seeding.

    Args:
        x: [n, width] unit rows.
        clusters: number of clusters wanted; the result has fewer if too few rows are distinct.
        seed: seed of the random draw; equal seeds give equal clusters.
        iterations: maximum number of rounds.

    Returns:
        int64 [n], the cluster of each row, numbered from 0 without gaps.
    """
    n = x.shape[0]
    clusters = max(1, min(clusters, n))
    if clusters == 1:
        return torch.zeros(n, dtype=torch.long, device=x.device)
    centres = _seeds(x, clusters, seed)
    clusters = len(centres)  # fewer if too few rows are distinct
    own = torch.full((n,), -1, dtype=torch.long, device=x.device)
    for _ in range(max(1, iterations)):
        closest = nearest(x, centres)
        if torch.equal(closest, own):
            break
        own = closest
        total = torch.zeros_like(centres).index_add_(0, own, x)
        empty = torch.bincount(own, minlength=clusters) == 0
        centres = torch.where(empty[:, None], centres, unit(total))
    numbered: torch.Tensor = torch.unique(own, return_inverse=True)[1]
    return numbered


def _seeds(x: torch.Tensor, clusters: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed & 0x7FFF_FFFF)
    picks = torch.rand(clusters, generator=draw, dtype=torch.float64).to(x.device)
    first = int(picks[0] * x.shape[0])
    centres = [first]
    far = _distance(x, first)
    for turn in range(1, clusters):
        steps = far.double().cumsum(0)
        if float(steps[-1]) <= 0:
            break
        place = torch.searchsorted(steps, picks[turn] * steps[-1], right=True)
        index = min(int(place), x.shape[0] - 1)
        centres.append(index)
        far = torch.minimum(far, _distance(x, index))
    return x[torch.tensor(centres, device=x.device)]


def _distance(x: torch.Tensor, row: int) -> torch.Tensor:
    """Return the cosine distance [n] of all rows from one row. It is exactly 0 for equal rows."""
    far = 1 - x @ x[row]
    return torch.where(far > TIE, far, torch.zeros_like(far))
