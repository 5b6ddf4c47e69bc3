"""Write the parts of a graph, given the owner of each node, in passes that read edges and features in chunks.

Memory is linear in the number of nodes. Every file is written from front to back: within a part, edges keep the order
of the whole graph, and so do the nodes that read no halo, and after them those that do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from equipoise import __version__
from equipoise.distributed.parts.assignment import Owner
from equipoise.distributed.parts.files import (
    FORMAT,
    FORMAT_VERSION,
    FileRecord,
    NpyWriter,
    RankRecord,
    StoredManifest,
    map_array,
    part_folder,
)
from equipoise.distributed.parts.graph_arrays import Array, GraphArrays, Int, chunks
from equipoise.distributed.parts.part import Manifest

OnProgress = Callable[[str, int, int], None]  # stage, rows done, rows in all
INDEX_BYTES = 8


def write_parts(
    graph: GraphArrays, owner: Owner, parts: int, folder: Path, *, method: str, report: OnProgress
) -> StoredManifest:
    """Write all parts and the manifest.

    Args:
        graph: the graph.
        owner: the part of each node.
        parts: number of parts.
        folder: an empty folder.
        method: name of the method that assigned the nodes.
        report: called after each chunk with the stage, the number of finished rows, and their total.

    Returns:
        The manifest.
    """
    writer = _PartWriter(graph, owner, parts, folder, report)
    writer.write_own()
    edge_cut = writer.split_edges()
    writer.write_halos()
    writer.write_send()
    writer.write_nodes()
    manifest = Manifest(
        name=graph.name,
        parts=parts,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=int(graph.node_arrays["x"].shape[1]),
        num_classes=graph.num_classes,
        method=method,
        fingerprint="",
    )
    stored = StoredManifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        manifest=manifest,
        edge_cut=edge_cut,
        versions={"equipoise": __version__, "numpy": np.__version__}
        | ({"pymetis": version("pymetis")} if method == "metis" else {}),
        ranks=writer.records(),
    ).signed()
    stored.write(folder)
    return stored


class _PartWriter:
    """The passes over the graph, and what they leave for later ones: counts per part, local indices, halos."""

    def __init__(self, graph: GraphArrays, owner: Owner, parts: int, folder: Path, report: OnProgress) -> None:
        self.graph, self.owner, self.parts, self.folder, self.report = graph, owner, parts, folder, report
        self.nodes: Int = np.bincount(owner, minlength=parts)
        self.edges: Int = np.zeros(parts, dtype=np.int64)
        self.reads_halo = np.zeros(graph.num_nodes, dtype=bool)
        for _, source, target in graph.edge_chunks():
            owner_of_target = owner[target]
            self.edges += np.bincount(owner_of_target, minlength=parts)
            self.reads_halo[target[owner[source] != owner_of_target]] = True
        self.local = np.empty(graph.num_nodes, dtype=np.int64)  # index of each node in its own part
        self.receive: list[list[int]] = []  # for each part the halo nodes of each owner
        self.files: list[dict[str, FileRecord]] = [{} for _ in range(parts)]
        for part in range(parts):
            part_folder(folder, part).mkdir()

    def write_own(self) -> None:
        """Write the nodes of each part; first those that read no halo, which can be computed during an exchange."""
        by_owner = np.lexsort((self.reads_halo, self.owner))
        for part, own in enumerate(np.split(by_owner, np.cumsum(self.nodes)[:-1])):
            self.local[own] = np.arange(len(own))
            self._write(part, "own", own)

    def split_edges(self) -> int:
        """Write the edges of each part with the local index of the target, and still the global one of the source.

        Returns:
            The number of edges between parts.
        """
        edge_cut = 0
        sources, targets = (self._row_writers(name, (), np.int64, self.edges) for name in ("source", "target"))
        edge_attr = self.graph.edge_attr
        attributes = (
            []
            if edge_attr is None
            else self._row_writers("edge_attr", edge_attr.shape[1:], edge_attr.dtype, self.edges)
        )
        for edges, source, target in self.graph.edge_chunks():
            part = self.owner[target]
            edge_cut += int(np.count_nonzero(self.owner[source] != part))
            _scatter(sources, part, source)
            _scatter(targets, part, self.local[target])
            if edge_attr is not None:
                _scatter(attributes, part, edge_attr[edges])
            self.report("splitting edges", edges.stop, self.graph.num_edges)
        if edge_attr is not None:
            self._record("edge_attr", attributes)
        return edge_cut

    def write_halos(self) -> None:
        """Find the halo of each part, and write its edges with local indices."""
        index = np.empty(self.graph.num_nodes, dtype=np.int64)  # in the current part
        for part in range(self.parts):
            source, target = self._read(part, "source"), self._read(part, "target")
            is_source = np.zeros(self.graph.num_nodes, dtype=bool)
            for edges in chunks(len(source), INDEX_BYTES):
                is_source[source[edges]] = True
            own = self.owner == part
            halo = np.flatnonzero(is_source & ~own)
            halo = halo[np.argsort(self.owner[halo], kind="stable")]
            index[own] = self.local[own]
            index[halo] = self.nodes[part] + np.arange(len(halo))
            self.receive.append(np.bincount(self.owner[halo], minlength=self.parts).tolist())
            self._write(part, "halo", halo)
            writer = NpyWriter(self._path(part, "edge_index"), (2, len(source)), np.int64)
            for edges in chunks(len(source), INDEX_BYTES):
                writer.append(index[source[edges]])
            for edges in chunks(len(target), INDEX_BYTES):
                writer.append(target[edges])
            self.files[part]["edge_index"] = writer.record()
            for name in ("source", "target"):
                self._path(part, name).unlink()
            self.report("finding boundary nodes", part + 1, self.parts)

    def write_send(self) -> None:
        """Write, for each part, the local indices of its nodes in the halo of each other part."""
        halos = [self._read(part, "halo") for part in range(self.parts)]
        starts = [np.cumsum([0, *counts]) for counts in self.receive]
        for part in range(self.parts):
            wanted = [halo[start[part] : start[part + 1]] for halo, start in zip(halos, starts, strict=True)]
            self._write(part, "send", self.local[np.concatenate(wanted)])

    def write_nodes(self) -> None:
        """Write features, labels and masks."""
        for name, array in self.graph.node_arrays.items():
            writers = self._row_writers(name, array.shape[1:], array.dtype, self.nodes)
            done = 0
            for group in (np.flatnonzero(~self.reads_halo), np.flatnonzero(self.reads_halo)):
                for rows in chunks(len(group), array[:1].nbytes):
                    nodes = group[rows]
                    _scatter(writers, self.owner[nodes], array[nodes])
                    self.report(f"writing {name}", done + rows.stop, len(array))
                done += len(group)
            self._record(name, writers)

    def records(self) -> list[RankRecord]:
        """Return the entries of the manifest."""
        return [
            RankRecord(
                nodes=int(self.nodes[part]),
                edges=int(self.edges[part]),
                send=[self.receive[other][part] for other in range(self.parts)],
                receive=self.receive[part],
                files=self.files[part],
            )
            for part in range(self.parts)
        ]

    def _path(self, part: int, name: str) -> Path:
        return part_folder(self.folder, part) / f"{name}.npy"

    def _write(self, part: int, name: str, array: Int) -> None:
        writer = NpyWriter(self._path(part, name), array.shape, np.int64)
        writer.append(array)
        self.files[part][name] = writer.record()

    def _read(self, part: int, name: str) -> Int:
        return map_array(self._path(part, name), mode="r")

    def _row_writers(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, counts: Int) -> list[NpyWriter]:
        """One writer per part for rows of the given shape."""
        return [NpyWriter(self._path(part, name), (int(count), *shape), dtype) for part, count in enumerate(counts)]

    def _record(self, name: str, writers: list[NpyWriter]) -> None:
        for files, writer in zip(self.files, writers, strict=True):
            files[name] = writer.record()


def _scatter(writers: list[NpyWriter], part: Owner, rows: Array) -> None:
    """Append each row to the writer of its part, in order."""
    order = np.argsort(part, kind="stable")
    ends = np.cumsum(np.bincount(part, minlength=len(writers)))
    for writer, selected in zip(writers, np.split(order, ends[:-1]), strict=True):
        writer.append(rows[selected])
