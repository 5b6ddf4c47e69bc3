import pytest
import torch
from hypothesis import settings

collect_ignore = ["fuzz/coverage_guided.py"]  # imports atheris, which is not among the development tools

settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors are faster on one thread, and the pytest workers share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
