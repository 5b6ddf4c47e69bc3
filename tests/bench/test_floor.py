import pytest

from equipoise.bench.floor import Rates, floor_milliseconds, last_cache, rate_clocks

RATES = Rates(product=2e9, loop=1e9, gather=4e9)


def test_dense_features_by_hand():
    # Products: 2·100·8·4 forward and once more back (first layer), 3 · 2·100·4·3 (second); edges: 24·500·(4 + 3).
    seconds = (2 * 6400 + 3 * 2400) / 2e9 + 84_000 / 1e9
    assert floor_milliseconds(100, 500, [8, 4, 3], RATES) == pytest.approx(1000 * seconds)


def test_sparse_features_count_what_is_stored_at_the_rate_of_loops():
    # 150 entries times 4 features, a product and a sum each, forward and for the gradient of the weights.
    seconds = 3 * 2400 / 2e9 + (84_000 + 2 * 2 * 150 * 4) / 1e9
    assert floor_milliseconds(100, 500, [8, 4, 3], RATES, stored=150) == pytest.approx(1000 * seconds)


def test_bytes_count_where_nodes_do_not_fit_the_cache_and_take_longer():
    slow = Rates(product=2e9, loop=1e9, gather=1e8)
    products = (2 * 6400 + 3 * 2400) / 2e9
    # Only the first layer, of 4 features, exceeds the cache: 4·100·4 = 1600 bytes; the second has 1200.
    seconds = products + 12 * 500 * 4 / 1e8
    assert floor_milliseconds(100, 500, [8, 4, 3], slow, cache=1500) == pytest.approx(1000 * seconds)
    assert floor_milliseconds(100, 500, [8, 4, 3], slow, cache=1600) == pytest.approx(1000 * (products + 84_000 / 1e9))


def test_cora_is_near_what_was_worked_out_by_hand():
    # 10 layers: 6 · 2708 · 64² flops of products a hidden layer, 24 · 13264 · 64 over edges; at 70 and 34 GFLOP/s.
    milliseconds = floor_milliseconds(2708, 13264, [1433, *[64] * 9, 7], Rates(70e9, 34e9, 1e10), stored=49216)
    assert 12 < milliseconds < 16


def test_rates_are_measured(monkeypatch):
    monkeypatch.setattr("equipoise.bench.floor.last_cache", lambda: 2**16)
    clocks = rate_clocks(nodes=64, width=16)
    assert set(clocks) == {"product", "loop", "gather"}
    for timed, work in clocks.values():
        assert work > 0
        assert min(timed(2)) > 0


def test_the_cache_is_that_of_the_machine_or_the_usual_one(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.bench.floor.LAST_CACHE", tmp_path / "size")
    assert last_cache() == 32 * 2**20
    (tmp_path / "size").write_text("1024K\n")
    assert last_cache() == 2**20
