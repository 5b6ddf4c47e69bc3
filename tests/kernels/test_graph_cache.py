import gc

import torch

from equipoise.kernels.graph_cache import GraphCache


def test_cache_rebuilds_only_after_in_place_change():
    cache, edge_index = GraphCache(), torch.tensor([[0, 1], [1, 2]])
    first = cache.get(edge_index, 3, True)
    assert cache.get(edge_index, 3, True) is first
    assert cache.get(edge_index, 3, False) is not first
    assert cache.get(edge_index, 4, True).targets == 4
    assert cache.get(edge_index.clone(), 3, True) is not first
    edge_index[0, 0] = 2
    second = cache.get(edge_index, 3, True)
    assert second is not first
    assert 2 in second.src[second.ptr[1] : second.ptr[2]]


def test_cache_entries_die_with_their_tensor():
    cache, edge_index = GraphCache(), torch.tensor([[0, 1], [1, 2]])
    cache.get(edge_index, 3, True)
    assert len(cache._entries) == 1
    del edge_index
    gc.collect()
    assert len(cache._entries) == 0


def test_value_of_a_pair_is_rebuilt_after_a_change_of_either_tensor():
    cache, edge_index, weight = GraphCache(), torch.tensor([[0, 1], [1, 2]]), torch.ones(2)
    built = []

    def value(weight):
        return cache.get_or_build_for_pair(edge_index, weight, "weights", lambda: built.append(1) or len(built))

    assert [value(weight), value(weight)] == [1, 1]
    assert value(weight.clone()) == 2
    weight.numpy()[0] = 3  # not seen by the version counter
    assert value(weight) == 3
    edge_index[0, 0] = 2
    assert [value(weight), value(weight)] == [4, 4]
