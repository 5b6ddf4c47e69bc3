"""Benchmarks against PyG and DGL: time per epoch, peak memory, scaling, and the code path of each graph layer."""
