"""Shared test networks: stacks of stock PyG layers on a small random graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

NODES, FEATURES, CLASSES, EDGE_FEATURES = 16, 6, 3, 4


def graph(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Node features and edge index of a random graph."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NODES, FEATURES, generator=generator, dtype=dtype)
    return x, torch.randint(0, NODES, (2, 3 * NODES), generator=generator)


def edge_features(seed: int = 0) -> Tensor:
    """Edge features for :func:`graph`."""
    return torch.randn(3 * NODES, EDGE_FEATURES, generator=torch.Generator().manual_seed(seed))


def random_graph(seed: int, count: int, edges: int) -> tuple[Tensor, Tensor]:
    """Three node features in float64 and edge index of a random graph of the given size."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(count, (2, edges), generator=generator)


def random_layer(layer_type: type[nn.Module], seed: int, **options: object) -> nn.Module:
    """A layer from 3 to 2 features in float64; every parameter is random, also those initialised to 0 or 1."""
    torch.manual_seed(seed)
    conv = layer_type(3, 2, **options).double()
    for parameter in conv.parameters():
        nn.init.normal_(parameter)
    return conv


def neighbours(edge_index: Tensor, i: int, add_self_loops: bool) -> list[int]:
    """Source nodes of the edges into i; like PyG, replaces existing self-loops by a single one."""
    sources = [j for j, target in edge_index.t().tolist() if target == i and not (add_self_loops and j == i)]
    return [*sources, i] if add_self_loops else sources


class Chain(nn.Module):
    """Convolutions with an activation φ in between; with ``skip``, h + φ(conv(h)) where shapes agree."""

    def __init__(
        self, *convs: nn.Module, activation: Callable[[Tensor], Tensor] = torch.relu, skip: bool = False
    ) -> None:
        super().__init__()
        for number, conv in enumerate(convs, start=1):
            self.add_module(f"conv{number}", conv)
        self.activation, self.skip = activation, skip

    def forward(self, x: Tensor, edge_index: Tensor, *args: Tensor) -> Tensor:
        convs = list(self.children())
        for number, conv in enumerate(convs, start=1):
            h = conv(x, edge_index, *args)
            if number < len(convs):
                h = self.activation(h)
            x = x + h if self.skip and h.shape == x.shape else h
        return x


class ReferenceOmegaGAT(GATv2Conv):
    """ωGAT on top of GATv2Conv: (1−ω)⊙Z + ω⊙(A Z) with Z = W h."""

    def __init__(self, *args: int, **kwargs: bool) -> None:
        super().__init__(*args, **kwargs)
        self.omega = nn.Parameter(torch.ones(self.heads * self.out_channels))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return (1 - self.omega) * self.lin_l(x) + self.omega * super().forward(x, edge_index)


def gatv2(widths: Sequence[int], heads: int = 1, concat: bool = True, **kwargs: bool) -> Chain:
    """A GATv2 with the given widths per head; the last layer has one head."""
    convs, in_channels = [], widths[0]
    for number, width in enumerate(widths[1:], start=2):
        last = number == len(widths)
        convs.append(GATv2Conv(in_channels, width, heads=1 if last else heads, concat=concat, **kwargs))
        in_channels = width * (heads if concat and not last else 1)
    return Chain(*convs)


@st.composite
def random_gatv2(draw: st.DrawFn) -> Chain:
    """A GATv2 in float64 with random depth, widths, heads and options."""
    depth = draw(st.integers(2, 6))
    hidden = draw(st.lists(st.integers(2, 9), min_size=depth - 1, max_size=depth - 1))
    options = {name: draw(st.booleans()) for name in ("share_weights", "bias", "residual", "concat")}
    return gatv2([FEATURES, *hidden, CLASSES], heads=draw(st.integers(1, 3)), **options).double()


def loss(output: Tensor) -> Tensor:
    """Cross-entropy with fixed labels."""
    return F.cross_entropy(output, torch.arange(len(output)) % output.shape[-1])
