"""Builds and maintains the semantic clusters of one layer in one visual cluster (Mosaic, sections V-B and
VI)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from lookout.past.memory.slabs import Residency, Slab, joined
from lookout.past.memory.statistics import kmeans, limit, nearest, unit, unit_variance
from lookout.past.memory.types import Ints, MaintenanceCount, MemorySettings, SplitMode

NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """One cluster of tokens: their KV, and sums over the members, from which means are computed. Immutable.

    Attributes:
        id: unique in the memory, and never reused.
        slab: the members' KV.
        unit: [width], sum of the members' unit keys (without bias), for assignment and variance.
        key: [width], sum of the members' raw keys (un-rotated, as attention reads them).
        value: [width], sum of the members' values.
        frame: sum of the members' frame numbers.
        first: smallest frame number of a member.
        last: largest frame number of a member.
        place: int64 [axes], sum of the members' places in their frames.
        marked: whether the cluster is too wide and waits to be split.
        owner: for a group of newcomers, the id of the marked cluster that it will be merged with; otherwise
            `NOBODY`.
    """

    id: int
    slab: Slab
    unit: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    frame: int
    first: int
    last: int
    place: Ints
    marked: bool = False
    owner: int = NOBODY

    @property
    def count(self) -> int:
        """Number of members."""
        return self.slab.size


@dataclass(frozen=True, eq=False)
class ClusterPartition:
    """The clusters of one layer inside one visual cluster. Immutable; stacked arrays are computed once."""

    clusters: tuple[Cluster, ...]

    @cached_property
    def ids(self) -> Ints:
        """Ids of the clusters, int64 [clusters]."""
        return np.array([cluster.id for cluster in self.clusters], dtype=np.int64)

    @cached_property
    def tokens(self) -> int:
        """Number of members of all clusters."""
        return sum(cluster.count for cluster in self.clusters)

    @cached_property
    def counts(self) -> torch.Tensor:
        """Number of members per cluster, int64 [clusters]."""
        return torch.tensor([cluster.count for cluster in self.clusters])

    @cached_property
    def units(self) -> torch.Tensor:
        """Sums of unit keys [clusters, width]."""
        return torch.stack([cluster.unit for cluster in self.clusters])

    @cached_property
    def frames(self) -> Ints:
        """First, mean (rounded) and last frame number, int64 [3, clusters]."""
        means = [round(cluster.frame / cluster.count) for cluster in self.clusters]
        first, last = [c.first for c in self.clusters], [c.last for c in self.clusters]
        return np.array([first, means, last], dtype=np.int64)

    @cached_property
    def totals(self) -> tuple[torch.Tensor, int]:
        """The sum of keys [width] over all members, and the number of members."""
        return torch.stack([cluster.key for cluster in self.clusters]).sum(0), int(self.counts.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Tokens that are about to join one layer's clusters.

    Attributes:
        units: [n, width], unit keys without bias.
        data: [n, 2, kv_heads, head_dim], KV.
        tokens: int64 [n], the tokens' numbers in the memory.
        frames: int64 [n], the tokens' frame numbers.
        places: int64 [axes, n], the tokens' positions inside their frames' slots.
    """

    units: torch.Tensor
    data: torch.Tensor
    tokens: Ints
    frames: Ints
    places: Ints

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Ints) -> Members:
        """Return the members in these rows."""
        index = torch.from_numpy(rows)
        return Members(
            self.units[index],
            self.data[index],
            self.tokens[rows],
            self.frames[rows],
            self.places[:, rows],
        )


@dataclass(slots=True)
class Upkeep:
    """What the maintenance of one layer's clusters needs besides the clusters.

    Attributes:
        settings: Settings of the memory.
        residency: Which clusters are on the device.
        bias: [width], subtracted from keys before they are compared.
        scale: The layer's mean variance at construction.
        lookup: Returns frames int64 [n] and places int64 [axes, n] of token numbers.
        next_id: Returns a new cluster id.
        count: Counts the work.
        leaving: Whether the cluster being split is leaving the device. Nothing is then fetched for it, and
            its parts do not stay on the device.
    """

    settings: MemorySettings
    residency: Residency
    bias: torch.Tensor
    scale: float
    lookup: Callable[[Ints], tuple[Ints, Ints]]
    next_id: Callable[[], int]
    count: MaintenanceCount = field(default_factory=MaintenanceCount)
    leaving: bool = False

    def units(self, data: torch.Tensor) -> torch.Tensor:
        """Return unit keys without bias, [n, width], of KV [n, 2, kv_heads, head_dim]."""
        flat = data[:, 0].reshape(data.shape[0], -1).to(self.bias.dtype)
        return unit(flat - self.bias)

    def members(self, slab: Slab) -> Members:
        """Return a slab's tokens as members, to cluster them again."""
        frames, places = self.lookup(slab.tokens)
        return Members(self.units(slab.data), slab.data, slab.tokens, frames, places)

    def too_wide(self, variance: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Return which clusters must be split, bool [clusters], because their variance or number of members
        exceeds its limit."""
        s = self.settings
        allowed = self.scale * limit(count, s.strict, s.loose, s.transition, s.rule)
        wide = (variance.double() > allowed) & (count >= s.smallest)
        return wide | (count > s.largest)

    def may_grow(self, count: int) -> bool:
        """Whether a cluster of `count` members that is too wide may stay whole while it is resident."""
        s = self.settings
        return s.split is SplitMode.RESTING and count <= s.outgrown * s.largest


def make(members: Members, upkeep: Upkeep, owner: int = NOBODY, marked: bool = False) -> Cluster:
    """Return a new cluster with these members. It is on the device unless it is leaving."""
    data = members.data.to(upkeep.bias.dtype)
    flat = data.reshape(len(members), 2, -1).sum(0)
    cluster = Cluster(
        id=upkeep.next_id(),
        slab=Slab.of(members.data, members.tokens),
        unit=members.units.sum(0),
        key=flat[0],
        value=flat[1],
        frame=int(members.frames.sum()),
        first=int(members.frames.min()),
        last=int(members.frames.max()),
        place=members.places.sum(1),
        marked=marked,
        owner=owner,
    )
    if not upkeep.leaving:
        upkeep.residency.touch(cluster.id, cluster.slab.bytes)
    return cluster


def construct(members: Members, upkeep: Upkeep, seed: int) -> ClusterPartition:
    """Cluster tokens for the first time, by cosine k-means on unit keys."""
    clusters = max(1, round(len(members) / upkeep.settings.cluster_tokens))
    own = kmeans(members.units, clusters, seed, upkeep.settings.iterations)
    return ClusterPartition(tuple(make(members.take(rows), upkeep) for rows in _groups(own)))


def assign(partition: ClusterPartition, members: Members, upkeep: Upkeep) -> ClusterPartition:
    """Add the tokens of one block. Each token joins the cluster with the most similar mean, found for all
    tokens in one matrix product. Clusters that become too wide are split or marked (Algorithm 1)."""
    hosts = [i for i, cluster in enumerate(partition.clusters) if cluster.owner == NOBODY]
    stacked, counts = partition.units, partition.counts
    if len(hosts) != len(partition.clusters):
        index = torch.tensor(hosts)
        stacked, counts = stacked[index], counts[index]
    own = nearest(members.units, unit(stacked))
    arrivals = torch.bincount(own, minlength=len(hosts))
    sums = torch.zeros_like(stacked).index_add_(0, own, members.units)
    count = counts + arrivals
    wide = upkeep.too_wide(unit_variance(stacked + sums, count), count)
    flat = members.data.reshape(len(members), 2, -1).to(stacked.dtype)
    added = torch.zeros(len(hosts), 2, flat.shape[2], dtype=stacked.dtype).index_add_(0, own, flat)
    clusters = list(partition.clusters)
    splitting: set[int] = set()
    for place, rows in zip(torch.unique(own).tolist(), _groups(own), strict=True):
        cluster = clusters[hosts[place]]
        newcomers = members.take(rows)
        if bool(wide[place]):
            resident = cluster.id in upkeep.residency
            if upkeep.settings.split is not SplitMode.EAGER and not resident:
                upkeep.count.deferred += 1
                clusters[hosts[place]] = replace(cluster, marked=True)
                _wait(clusters, cluster.id, newcomers, sums[place], added[place], upkeep)
                continue
            if upkeep.may_grow(int(count[place])):
                upkeep.count.deferred += 1
                cluster = replace(cluster, marked=True)
            else:
                splitting.add(cluster.id)
        clusters[hosts[place]] = _grown(cluster, newcomers, sums[place], added[place], upkeep)
    grown = ClusterPartition(tuple(clusters))
    return split(_merge(grown, splitting, upkeep), splitting, upkeep) if splitting else grown


def _wait(  # noqa: PLR0917
    clusters: list[Cluster],
    host: int,
    newcomers: Members,
    units: torch.Tensor,
    added: torch.Tensor,
    upkeep: Upkeep,
) -> None:
    """Add newcomers of a marked cluster to the group that waits for the cluster's split; answers can read the
    group. If the group would become too full, it becomes an independent cluster, and a new group begins.
    Neither needs a fetch."""
    for place, group in enumerate(clusters):
        if group.owner != host:
            continue
        if group.count + len(newcomers) <= upkeep.settings.waiting:
            clusters[place] = _grown(group, newcomers, units, added, upkeep)
            return
        clusters[place] = replace(group, owner=NOBODY)
        upkeep.count.promoted += 1
    clusters.append(make(newcomers, upkeep, owner=host))


def _grown(
    cluster: Cluster, more: Members, units: torch.Tensor, added: torch.Tensor, upkeep: Upkeep
) -> Cluster:
    slab = cluster.slab.appended(more.data, more.tokens)
    upkeep.residency.resize(cluster.id, slab.bytes)
    return replace(
        cluster,
        slab=slab,
        unit=cluster.unit + units,
        key=cluster.key + added[0],
        value=cluster.value + added[1],
        frame=cluster.frame + int(more.frames.sum()),
        first=min(cluster.first, int(more.frames.min())),
        last=max(cluster.last, int(more.frames.max())),
        place=cluster.place + more.places.sum(1),
    )


def split(partition: ClusterPartition, ids: set[int], upkeep: Upkeep) -> ClusterPartition:
    """Split the clusters with these ids in two, or into more parts if they have many members. A cluster that
    is not on the device is fetched first."""
    out: list[Cluster] = []
    for cluster in partition.clusters:
        if cluster.id not in ids:
            out.append(cluster)
            continue
        if cluster.id not in upkeep.residency and not upkeep.leaving:
            upkeep.count.moved_bytes += cluster.slab.bytes
        out.extend(_divided(cluster, upkeep))
    return ClusterPartition(tuple(out))


def _divided(cluster: Cluster, upkeep: Upkeep) -> Sequence[Cluster]:
    """Divide a cluster into several. In mode `RESTING`, parts that are still too wide are divided again,
    because newcomers may never come to trigger another split."""
    members = upkeep.members(cluster.slab)
    target = max(2, round(len(members) / upkeep.settings.cluster_tokens))
    own = kmeans(members.units, target, upkeep.settings.seed ^ cluster.id, upkeep.settings.iterations)
    groups = _groups(own)
    if len(groups) == 1 and len(members) > upkeep.settings.largest:
        groups = np.array_split(np.arange(len(members)), target)
    if len(groups) == 1:
        return [replace(cluster, marked=False)]
    upkeep.count.splits += 1
    upkeep.residency.drop(cluster.id)
    parts = ClusterPartition(tuple(make(members.take(rows), upkeep) for rows in groups))
    if upkeep.settings.split is not SplitMode.RESTING:
        return parts.clusters
    wide = upkeep.too_wide(unit_variance(parts.units, parts.counts), parts.counts).tolist()
    return [
        part
        for cluster, again in zip(parts.clusters, wide, strict=True)
        for part in (_divided(cluster, upkeep) if again else [cluster])
    ]


def settle(partition: ClusterPartition, ids: set[int], upkeep: Upkeep) -> ClusterPartition:
    """Carry out the deferred splits of the clusters with these ids, which were fetched or are due.

    A cluster is first merged with the newcomers that wait for it, then split if it is still too wide.
    """
    due = {cluster.id for cluster in partition.clusters if cluster.id in ids and cluster.marked}
    if not due:
        return partition
    merged = _merge(partition, due, upkeep)
    wide = upkeep.too_wide(unit_variance(merged.units, merged.counts), merged.counts).tolist()
    again = {c.id for c, is_wide in zip(merged.clusters, wide, strict=True) if is_wide and c.id in due}
    return split(merged, again, upkeep)


def _merge(partition: ClusterPartition, ids: set[int], upkeep: Upkeep) -> ClusterPartition:
    """Merge the clusters with these ids with the newcomers that wait for them."""
    waiting: dict[int, list[Cluster]] = {}
    for cluster in partition.clusters:
        if cluster.owner in ids:
            waiting.setdefault(cluster.owner, []).append(cluster)
    return ClusterPartition(
        tuple(
            _merged(cluster, waiting.get(cluster.id, ()), upkeep) if cluster.id in ids else cluster
            for cluster in partition.clusters
            if cluster.owner not in ids
        )
    )


def _merged(cluster: Cluster, waiting: Sequence[Cluster], upkeep: Upkeep) -> Cluster:
    parts = [cluster, *waiting]
    for group in waiting:
        upkeep.residency.drop(group.id)
    slab = joined(part.slab for part in parts)
    upkeep.residency.resize(cluster.id, slab.bytes)
    return replace(
        cluster,
        slab=slab,
        unit=torch.stack([part.unit for part in parts]).sum(0),
        key=torch.stack([part.key for part in parts]).sum(0),
        value=torch.stack([part.value for part in parts]).sum(0),
        frame=sum(part.frame for part in parts),
        first=min(part.first for part in parts),
        last=max(part.last for part in parts),
        place=np.sum([part.place for part in parts], axis=0),
        marked=False,
    )


def without(
    partition: ClusterPartition, gone: Callable[[Ints], Ints], upkeep: Upkeep
) -> ClusterPartition | None:
    """Remove tokens from clusters, and compute the clusters' sums again from the remaining tokens.

    Args:
        partition: the clusters.
        gone: given token numbers [n], returns which to remove, bool [n].
        upkeep: looks up the frames and places of tokens.

    Returns:
        The new partition, the same object if nothing was removed, or None if no token remains.
    """
    out: list[Cluster] = []
    touched = False
    for cluster in partition.clusters:
        leaving = gone(cluster.slab.tokens)
        if not leaving.any():
            out.append(cluster)
            continue
        touched = True
        upkeep.residency.drop(cluster.id)
        rows = np.flatnonzero(~leaving)
        if len(rows):
            remainder = upkeep.members(cluster.slab).take(rows)
            out.append(replace(make(remainder, upkeep), marked=cluster.marked, owner=cluster.owner))
    if not touched:
        return partition
    ids = {cluster.id for cluster in out}
    owners = {cluster.owner for cluster in out}
    # A marked cluster that lost members has a new id, so its waiting newcomers become independent clusters.
    out = [
        replace(
            cluster,
            owner=cluster.owner if cluster.owner in ids else NOBODY,
            marked=cluster.marked and (cluster.id in owners or cluster.id in upkeep.residency),
        )
        for cluster in out
    ]
    return ClusterPartition(tuple(out)) if out else None


def _groups(own: torch.Tensor) -> list[Ints]:
    """Return the rows of every cluster number that occurs, ascending."""
    order = torch.argsort(own, stable=True).numpy()
    numbers = own.numpy()[order]
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    return [rows.astype(np.int64) for rows in np.split(order, cuts)]
