import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

NODES, FEATURES, CLASSES = 40, 6, 3


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    x = F.one_hot(y, FEATURES).float() + 0.3 * torch.randn(NODES, FEATURES, generator=generator)
    masks = {}
    for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
        masks[name] = torch.zeros(NODES, dtype=torch.bool)
        masks[name][number * 13 : (number + 1) * 13] = True
    return Data(x=x, y=y, edge_index=torch.randint(0, NODES, (2, 60), generator=generator), **masks)
