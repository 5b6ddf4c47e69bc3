import pytest

from equipoise.bench.roofline import Throughput, last_level_cache, roofline_milliseconds, throughput_timers

THROUGHPUT = Throughput(product=2e9, blas=1e9, loop=1e9, gather=4e9)


def test_dense_features_by_hand():
    # Products: 2·100·8·4 forward and once more backward (first layer), 3 · 2·100·4·3 (second); edges: 24·500·(4 + 3).
    seconds = (2 * 6400 + 3 * 2400) / 2e9 + 84_000 / 1e9
    assert roofline_milliseconds(100, 500, [8, 4, 3], THROUGHPUT) == pytest.approx(1000 * seconds)


def test_sparse_features_count_stored_entries_at_loop_throughput():
    # 150 entries times 4 features, a product and a sum each, forward and for the gradient of the weights.
    seconds = 3 * 2400 / 2e9 + (84_000 + 2 * 2 * 150 * 4) / 1e9
    assert roofline_milliseconds(100, 500, [8, 4, 3], THROUGHPUT, stored=150) == pytest.approx(1000 * seconds)


def test_gathered_bytes_count_beyond_the_cache_if_they_take_longer():
    slow = Throughput(product=1e9, blas=2e9, loop=1e9, gather=1e8)
    products = (2 * 6400 + 3 * 2400) / 2e9
    # Only the first layer, of 4 features, exceeds the cache: 4·100·4 = 1600 bytes; the second has 1200.
    seconds = products + 12 * 500 * 4 / 1e8
    assert roofline_milliseconds(100, 500, [8, 4, 3], slow, cache=1500) == pytest.approx(1000 * seconds)
    in_cache = 1000 * (products + 84_000 / 1e9)
    assert roofline_milliseconds(100, 500, [8, 4, 3], slow, cache=1600) == pytest.approx(in_cache)


def test_cora_matches_an_estimate_by_hand():
    # 10 layers: 6 · 2708 · 64² flops of products per hidden layer, 24 · 13264 · 64 over edges; 70 and 34 GFLOP/s.
    throughput = Throughput(product=70e9, blas=70e9, loop=34e9, gather=1e10)
    assert 12 < roofline_milliseconds(2708, 13264, [1433, *[64] * 9, 7], throughput, stored=49216) < 16


def test_throughput_is_measured(monkeypatch):
    monkeypatch.setattr("equipoise.bench.roofline.last_level_cache", lambda: 2**16)
    timers = throughput_timers(nodes=64, width=16)
    assert set(timers) == {"product", "blas", "loop", "gather"}
    for timer, work in timers.values():
        assert work > 0
        assert min(timer(2)) > 0


def test_cache_size_is_read_or_a_default(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.bench.roofline.CACHE_SIZE_FILE", tmp_path / "size")
    assert last_level_cache() == 32 * 2**20
    (tmp_path / "size").write_text("1024K\n")
    assert last_level_cache() == 2**20
