import pytest
import torch

from equipoise.kernels.denormals import are_zero, denormals_as_zero


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def products():
    """So many of them that all threads have their part."""
    return torch.full((1_000_000,), 1e-30) * 1e-10


def test_on_every_thread_and_only_for_a_while(two_threads):
    assert products().count_nonzero() == 1_000_000
    with denormals_as_zero():
        assert products().count_nonzero() == 0
    assert products().count_nonzero() == 1_000_000


def test_left_as_it_was_after_an_error_and_where_it_was_on(two_threads):
    with pytest.raises(ZeroDivisionError), denormals_as_zero():
        1 / 0  # noqa: B018
    assert not are_zero()
    with denormals_as_zero():
        with denormals_as_zero():
            pass
        assert are_zero()
        assert products().count_nonzero() == 0
    assert not are_zero()
