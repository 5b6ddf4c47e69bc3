"""Memory of layers on a part is recycled, but never while somebody still uses it."""

import torch

from equipoise.distributed.buffers import BufferPool


def test_memory_is_in_use_while_a_view_of_the_tensor_is():
    pool = BufferPool()
    first = pool.empty((100, 8), torch.float32)
    view, address = first.fill_(1)[50:].numpy(), first.data_ptr()
    del first
    second = pool.empty((100, 8), torch.float32)
    second.fill_(2)
    assert second.data_ptr() != address
    assert (view == 1).all()
    del view
    assert pool.empty((800,), torch.float32).data_ptr() == address


def test_autograd_keeps_memory_of_saved_tensors():
    pool, x = BufferPool(), torch.ones(64, requires_grad=True)
    factor = pool.empty((64,), torch.float32).fill_(3)
    product = x * factor
    del factor
    pool.empty((64,), torch.float32).fill_(-1)
    product.sum().backward()
    assert (x.grad == 3).all()


def test_large_blocks_are_not_taken_for_small_tensors():
    pool = BufferPool()
    large = pool.empty((1000,), torch.float64)
    address = large.data_ptr()
    del large
    assert pool.empty((500,), torch.float64).data_ptr() != address
    assert pool.empty((900,), torch.float64).data_ptr() == address


def test_tensors_are_aligned_and_may_be_empty():
    pool = BufferPool()
    assert pool.empty((3, 5), torch.float64).data_ptr() % 64 == 0
    assert pool.empty((0, 5), torch.float64).shape == (0, 5)


def test_scratch_is_reused_by_name():
    pool = BufferPool()
    first = pool.scratch("a", (10, 2), torch.float32)
    assert pool.scratch("a", (5,), torch.float64).data_ptr() == first.data_ptr()
    assert pool.scratch("b", (10, 2), torch.float32).data_ptr() != first.data_ptr()
    assert pool.scratch("a", (20, 2), torch.float32).shape == (20, 2)


def test_the_block_released_last_is_used_first():
    pool = BufferPool()
    first, second = pool.empty((64,), torch.float32), pool.empty((64,), torch.float32)
    address = first.data_ptr()
    del second
    del first
    assert pool.empty((64,), torch.float32).data_ptr() == address
