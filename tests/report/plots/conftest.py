import pytest
import torch

from equipoise.data.load import load_dataset
from equipoise.init.schemes import initialize_
from equipoise.laws.discover import discover
from equipoise.nn.stack import Stack
from equipoise.training.loop import train
from equipoise.training.recorder import Recorder


@pytest.fixture(scope="session")
def runs():
    """Recordings by scheme: four layers, six epochs, two schemes."""
    data, frames = load_dataset("synthetic-citation"), {}
    for scheme in ("xav", "bal-o"):
        model = Stack("gatv2", [data.num_features, 8, 8, 8, data.classes])
        generator = torch.Generator().manual_seed(0)
        initialize_(model, scheme, generator=generator)
        x = torch.rand(12, data.num_features, generator=generator)
        laws = discover(model, x, torch.randint(0, 12, (2, 40), generator=generator))
        recorder = Recorder(model, laws, every=2)
        train(model, data, lr=0.2, epochs=6, record=recorder)
        frames[scheme] = recorder.frame()
    return frames
