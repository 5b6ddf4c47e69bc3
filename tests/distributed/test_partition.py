"""The union of the parts is the graph, exactly, and what ranks send is what the others expect."""

import tempfile
import tracemalloc
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

import equipoise as eq
from equipoise.distributed.parts import graph_arrays
from equipoise.distributed.parts.files import StoredManifest, read_manifest
from equipoise.distributed.parts.graph_arrays import read_graph
from equipoise.distributed.parts.writer import write_parts
from equipoise.errors import ChoiceError, EdgeIndexError, PartitionError
from tests.distributed.graphs import graphs

OPTIONAL = ("y", "train_mask", "val_mask", "test_mask")
needs_metis = pytest.mark.skipif(find_spec("pymetis") is None, reason="needs the extra metis")
METHODS = ["blocks", pytest.param("metis", marks=needs_metis)]


def load_all(folder) -> list[eq.Part]:
    return [eq.load_part(folder, rank) for rank in range(read_manifest(Path(folder)).manifest.parts)]


def check_parts(parts: list[eq.Part], data: Data) -> None:
    """Reassemble the graph from the parts."""
    nodes, edges = len(data.x), data.edge_index
    owner = torch.full((nodes,), -1)
    for part in parts:
        assert (owner[part.own] == -1).all()  # one owner per node
        owner[part.own] = part.rank
    assert (owner >= 0).all()

    for part in parts:
        assert (part.parts, part.num_nodes) == (len(parts), nodes)
        names = torch.cat([part.own, part.halo])
        assert (owner[part.halo] != part.rank).all()
        assert part.halo.tolist() == sorted(part.halo.tolist(), key=lambda node: (int(owner[node]), node))
        # Own edges are those of own targets, in the order of the whole graph, with local indices.
        mine = owner[edges[1]] == part.rank
        assert names[part.edge_index].equal(edges[:, mine])
        assert part.edge_index[1].lt(len(part.own)).all()
        # Own nodes that read the halo come last; both groups ascend.
        reads_halo = set(edges[1, mine & (owner[edges[0]] != part.rank)].tolist())
        assert part.own.tolist() == sorted(part.own.tolist(), key=lambda node: (node in reads_halo, node))
        # The halo is exactly what own nodes read.
        assert set(part.halo.tolist()) == set(edges[0, mine].tolist()) - set(part.own.tolist())
        assert part.x.dtype == data.x.dtype
        assert part.x.equal(data.x[part.own])
        for name in OPTIONAL:
            assert (getattr(part, name) is None) == (name not in data)
            assert name not in data or getattr(part, name).equal(data[name][part.own])
        assert (part.edge_attr is None) == ("edge_attr" not in data)
        assert "edge_attr" not in data or part.edge_attr.equal(data.edge_attr[mine])

    for receiver in parts:
        assert len(receiver.receive) == len(receiver.send) == len(parts)
        assert sum(receiver.receive) == len(receiver.halo)
        for sender, halo in zip(parts, receiver.halo.split(list(receiver.receive)), strict=True):
            assert sender.own[sender.send[receiver.rank]].equal(halo)
        assert receiver.receive[receiver.rank] == 0


def write(data: Data, owner, parts: int, folder: Path) -> StoredManifest:
    graph = read_graph(data)
    return write_parts(graph, np.asarray(owner, dtype=np.int32), parts, folder, method="blocks", report=lambda *_: None)


@given(data=graphs(), parts=st.integers(1, 5), random=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_assignment_gives_the_graph_exactly(data, parts, random):
    owner = [random.randrange(parts) for _ in range(len(data.x))]
    with tempfile.TemporaryDirectory() as folder:
        stored = write(data, owner, parts, Path(folder))
        check_parts(load_all(folder), data)
        crossing = sum(owner[source] != owner[target] for source, target in data.edge_index.t().tolist())
        assert stored.edge_cut == crossing


@pytest.mark.parametrize("method", METHODS)
@given(data=graphs(), parts=st.integers(1, 16))
@settings(max_examples=12, deadline=None)
def test_partition_gives_the_graph_exactly(method, data, parts):
    with tempfile.TemporaryDirectory() as folder:
        summary = eq.partition(data, parts, folder, method=method)
        loaded = load_all(folder)
    check_parts(loaded, data)
    assert summary.nodes == tuple(len(part.own) for part in loaded)
    assert summary.edges == tuple(part.edge_index.size(1) for part in loaded)
    assert summary.receive == tuple(len(part.halo) for part in loaded)
    assert summary.send == tuple(sum(map(len, part.send)) for part in loaded)


@pytest.mark.parametrize("method", METHODS)
def test_equal_input_gives_equal_files(method, tmp_path):
    data = eq.load_dataset("synthetic-citation")
    contents = []
    for name in ("first", "second"):
        eq.partition(data, 3, tmp_path / name, method=method)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 1 + 3 * 9


def test_chunks_do_not_change_the_files(tmp_path, monkeypatch):
    data = eq.load_dataset("synthetic-citation")
    data.edge_attr = torch.randn(data.num_edges, 3)
    whole = eq.partition(data, 3, tmp_path / "whole", method="blocks")
    monkeypatch.setattr(graph_arrays, "CHUNK_BYTES", 999)
    chunked = eq.partition(data, 3, tmp_path / "chunked", method="blocks")
    assert whole == chunked  # the fingerprint covers every file
    check_parts(load_all(tmp_path / "chunked"), data)


@pytest.mark.parametrize("method", METHODS)
def test_parts_are_balanced_by_edges_and_keep_neighbours_together(method, tmp_path):
    data = eq.load_dataset("synthetic-citation")
    summary = eq.partition(data, 4, tmp_path / "parts", method=method)
    assert summary.balance < 1.1
    in_order = write(data, np.arange(data.num_nodes) * 4 // data.num_nodes, 4, _folder(tmp_path / "in-order"))
    assert summary.edge_cut < 0.5 * in_order.edge_cut


@pytest.mark.parametrize("method", METHODS)
def test_nodes_with_many_edges_count_for_many(method, tmp_path):
    """A tenth of the nodes has nearly all edges: parts with equal numbers of nodes would be unequal."""
    members = np.arange(100).reshape(10, 10)
    cliques = np.concatenate([np.stack(np.meshgrid(clique, clique)).reshape(2, -1) for clique in members], axis=1)
    path = np.arange(999)
    edges = torch.from_numpy(np.concatenate([np.tile(cliques, 10), np.stack([path, path + 1])], axis=1))
    summary = eq.partition(Data(x=torch.zeros(1000, 1), edge_index=edges), 3, tmp_path / "parts", method=method)
    assert summary.balance < 1.2
    assert max(summary.nodes) > 2 * min(summary.nodes)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_node_whose_neighbours_are_all_elsewhere(tmp_path):
    star = Data(x=torch.arange(5.0)[:, None], edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]))
    write(star, [0, 1, 1, 2, 2], 3, tmp_path)
    hub, *leaves = load_all(tmp_path)
    assert hub.edge_index.tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]
    assert hub.halo.tolist() == [1, 2, 3, 4]
    assert hub.receive == (0, 2, 2)
    assert [part.send[0].tolist() for part in leaves] == [[0, 1], [0, 1]]
    assert all(part.edge_index.size(1) == len(part.halo) == 0 for part in leaves)


@pytest.mark.parametrize("method", METHODS)
def test_more_parts_than_nodes_leave_empty_parts(method, tmp_path):
    data = Data(x=torch.randn(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
    summary = eq.partition(data, 5, tmp_path / "parts", method=method)
    assert sorted(summary.nodes) == [0, 0, 0, 1, 1]
    check_parts(load_all(tmp_path / "parts"), data)


def test_files_and_folders_as_input(tmp_path):
    data = eq.load_dataset("synthetic-citation")
    folder = _folder(tmp_path / "citations")
    arrays = {"x": data.x, "edge_index": data.edge_index.int(), "y": data.y, "train_mask": data.train_mask}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.numpy())
    from_folder = eq.partition(folder, 2, tmp_path / "a", method="blocks")
    paths = {name: folder / f"{name}.npy" for name in arrays} | {"name": "citations"}
    from_mapping = eq.partition(paths, 2, tmp_path / "b", method="blocks")
    mapped = {name: np.load(path, mmap_mode="r") for name, path in paths.items() if name != "name"}
    from_memory_maps = eq.partition(mapped | {"name": "citations"}, 2, tmp_path / "c", method="blocks")
    assert from_folder == from_mapping == from_memory_maps
    assert from_folder.name == "citations"
    assert eq.load_part(tmp_path / "a", 0).manifest.num_classes == 7
    check_parts(
        load_all(tmp_path / "a"), Data(**{name: torch.as_tensor(arrays[name]).to(data[name].dtype) for name in arrays})
    )


def test_features_are_not_held_in_memory(tmp_path):
    """Features of 32 MB in a file; partitioning allocates a small fraction of that."""
    nodes, width = 1000, 8_000
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (nodes, width))[::100] = 1
    ring = np.arange(nodes)
    graph = {"x": tmp_path / "x.npy", "edge_index": np.stack([ring, np.roll(ring, 1)])}
    eq.partition({"x": ring[:, None], "edge_index": graph["edge_index"]}, 2, tmp_path / "warm-up", method="blocks")
    chunk, graph_arrays.CHUNK_BYTES = graph_arrays.CHUNK_BYTES, 2**19
    tracemalloc.start()
    try:
        eq.partition(graph, 2, tmp_path / "parts", method="blocks")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        graph_arrays.CHUNK_BYTES = chunk
    assert peak < 4e6
    assert eq.load_part(tmp_path / "parts", 1).x.sum() > 0


def test_progress_is_monotone_and_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_arrays, "CHUNK_BYTES", 50_000)
    calls = []
    eq.partition(
        eq.load_dataset("synthetic-citation"), 2, tmp_path / "parts", on_progress=lambda *call: calls.append(call)
    )
    stages = list(dict.fromkeys(stage for stage, _, _ in calls))
    assert stages[:4] == ["assigning nodes", "splitting edges", "finding boundary nodes", "writing x"]
    for stage in stages:
        done = [(done, total) for name, done, total in calls if name == stage]
        assert all(a[0] < b[0] for a, b in pairwise(done))
        assert done[-1][0] == done[-1][1]
    assert sum(name == "writing x" for name, _, _ in calls) > 10


X, EDGES = torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(edge_index=EDGES), "the graph has no x"),
        (Data(x=X), "the graph has no edge_index"),
        (Data(x=X[0], edge_index=EDGES), r"x has shape \(2,\)"),
        (Data(x=X, edge_index=EDGES.float()), "type float32"),
        (Data(x=X, edge_index=EDGES[0]), r"edge_index has shape \(2,\)"),
        (Data(x=X, edge_index=EDGES, y=torch.zeros(2)), "one row for each of the 3 nodes"),
        (Data(x=X, edge_index=EDGES, edge_attr=torch.zeros(3)), "one row for each of the 2 edges"),
        (Data(x=X.to_sparse(), edge_index=EDGES), "x cannot be read as an array"),
        (Data(x=X.bfloat16(), edge_index=EDGES), "x cannot be read as an array"),
        ({"x": "nowhere.npy", "edge_index": EDGES}, "(?s)x cannot be read.*nowhere.npy"),
        ("no/such/folder", "there is no folder"),
    ],
)
def test_malformed_graphs_are_refused(data, message, tmp_path):
    with pytest.raises(PartitionError, match=message):
        eq.partition(data, 2, tmp_path / "parts")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("parts", [0, -1, 2.0, "2", True, None])
def test_a_number_of_parts_that_is_none(parts, tmp_path):
    with pytest.raises(PartitionError, match="parts are not possible"):
        eq.partition(Data(x=X, edge_index=EDGES), parts, tmp_path / "parts")


def test_numbers_of_numpy_are_numbers(tmp_path):
    assert eq.partition(Data(x=X, edge_index=EDGES), np.int64(2), tmp_path / "parts").parts == 2


def test_an_archive_is_not_an_array(tmp_path):
    np.savez(tmp_path / "x.npz", x=X.numpy())
    with pytest.raises(PartitionError, match="x cannot be read as an array of numbers: it holds a NpzFile"):
        eq.partition({"x": tmp_path / "x.npz", "edge_index": EDGES}, 2, tmp_path / "parts")


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        ({"y": torch.tensor([0, 4, 1])}, 5),
        ({"y": torch.tensor([[0], [4], [1]])}, 5),  # as in OGB
        ({"y": torch.tensor([0, 4, 1]), "classes": 6}, 6),
        ({"y": torch.tensor([0, 4, 1]), "classes": ["names", "of", "classes"]}, 5),
        ({"y": torch.zeros(3, 2, dtype=torch.long)}, None),
        ({"y": torch.zeros(3)}, None),
        ({}, None),
    ],
)
def test_number_of_classes(options, classes, tmp_path):
    eq.partition(Data(x=X, edge_index=EDGES, **options), 1, tmp_path / "parts")
    assert eq.load_part(tmp_path / "parts").manifest.num_classes == classes


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(PartitionError, match="pickle"):
        eq.partition({"x": tmp_path / "x.npy", "edge_index": EDGES}, 2, tmp_path / "parts")


@pytest.mark.parametrize(("node", "where"), [(3, r"edge_index\[1, 1\]"), (-1, r"edge_index\[1, 1\]")])
def test_an_edge_to_a_missing_node_is_named_and_nothing_is_written(node, where, tmp_path):
    edges = torch.tensor([[0, 1], [1, node]])
    with pytest.raises(EdgeIndexError, match=where):
        eq.partition(Data(x=X, edge_index=edges), 2, tmp_path / "parts", method="blocks")
    assert not list(tmp_path.iterdir())


def test_impossible_requests_are_refused(tmp_path, monkeypatch):
    data = Data(x=X, edge_index=EDGES)
    with pytest.raises(PartitionError, match="0 parts are not possible"):
        eq.partition(data, 0, tmp_path / "parts")
    with pytest.raises(ChoiceError, match="did you mean 'metis'"):
        eq.partition(data, 2, tmp_path / "parts", method="meits")
    monkeypatch.setattr("equipoise.distributed.parts.assignment.find_spec", lambda _: None)
    with pytest.raises(PartitionError, match=r"pip install 'equipoise\[metis\]'"):
        eq.partition(data, 2, tmp_path / "parts", method="metis")
    assert eq.partition(data, 2, tmp_path / "parts").method == "blocks"


class TestDestination:
    data = Data(x=X, edge_index=EDGES)

    def test_an_existing_partition_is_replaced_only_by_force(self, tmp_path):
        eq.partition(self.data, 3, tmp_path / "parts")
        with pytest.raises(PartitionError, match="--force"):
            eq.partition(self.data, 2, tmp_path / "parts")
        assert eq.load_part(tmp_path / "parts", 2).parts == 3
        eq.partition(self.data, 2, tmp_path / "parts", force=True)
        assert eq.load_part(tmp_path / "parts", 1).parts == 2
        assert [path.name for path in tmp_path.iterdir()] == ["parts"]
        assert not (tmp_path / "parts" / "part-2").exists()

    def test_other_files_are_never_overwritten(self, tmp_path):
        eq.partition(self.data, 2, tmp_path)  # an empty folder is fine
        (tmp_path / "thesis.tex").write_text("precious")
        with pytest.raises(PartitionError, match="not overwritten"):
            eq.partition(self.data, 2, tmp_path, force=True)
        assert (tmp_path / "thesis.tex").read_text() == "precious"

    def test_a_file_is_not_a_folder(self, tmp_path):
        (tmp_path / "parts").write_text("")
        with pytest.raises(PartitionError, match="is not a folder"):
            eq.partition(self.data, 2, tmp_path / "parts", force=True)

    @pytest.mark.parametrize("out", [None, 3])
    def test_something_else_is_not_a_folder(self, out):
        with pytest.raises(PartitionError, match="expected the folder of a partition"):
            eq.partition(self.data, 2, out)

    @pytest.mark.parametrize("name", ["file/parts", "a" * 250, "a" * 300])
    def test_a_folder_that_cannot_be_written_is_named(self, name, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(PartitionError, match=f"(?s)cannot be written.*{name}.*remedy"):
            eq.partition(self.data, 2, tmp_path / name)

    @pytest.mark.parametrize("force", [False, True])
    def test_the_current_directory_is_not_replaced(self, force, tmp_path, monkeypatch):
        if force:
            eq.partition(self.data, 2, tmp_path)
        monkeypatch.chdir(tmp_path / "part-0" if force else tmp_path)
        with pytest.raises(PartitionError, match="current directory"):
            eq.partition(self.data, 2, tmp_path, force=force)

    def test_an_interrupted_partition_leaves_the_old_one(self, tmp_path):
        eq.partition(self.data, 3, tmp_path / "parts")

        def interrupt(stage: str, done: int, total: int) -> None:
            if stage == "writing x":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            eq.partition(self.data, 2, tmp_path / "parts", force=True, on_progress=interrupt)
        assert eq.load_part(tmp_path / "parts", 0).parts == 3
        assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_far_more_parts_than_nodes_are_refused(tmp_path):
    data = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0], [1]]))
    assert eq.partition(data, 5, tmp_path / "five", method="blocks").nodes.count(0) >= 2
    with pytest.raises(PartitionError, match="2000000000 parts of 3 nodes"):
        eq.partition(data, 2_000_000_000, tmp_path / "many")
    assert [folder.name for folder in tmp_path.iterdir()] == ["five"]
