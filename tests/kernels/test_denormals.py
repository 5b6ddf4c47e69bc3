import pytest
import torch

from equipoise.kernels.denormals import flush_denormals, is_flushing_denormals


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def denormal_products():
    """Enough elements for torch to use all threads."""
    return torch.full((1_000_000,), 1e-30) * 1e-10


def test_flushes_on_every_thread_inside_the_context_only(two_threads):
    assert denormal_products().count_nonzero() == 1_000_000
    with flush_denormals():
        assert denormal_products().count_nonzero() == 0
    assert denormal_products().count_nonzero() == 1_000_000


def test_restores_the_mode_after_an_error_and_when_nested(two_threads):
    with pytest.raises(ZeroDivisionError), flush_denormals():
        1 / 0  # noqa: B018
    assert not is_flushing_denormals()
    with flush_denormals():
        with flush_denormals():
            pass
        assert is_flushing_denormals()
        assert denormal_products().count_nonzero() == 0
    assert not is_flushing_denormals()
