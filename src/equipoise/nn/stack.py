"""Deep graph networks from a kind of layer and a list of widths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj

from equipoise.errors import ArchitectureError, ChoiceError
from equipoise.laws.validation import is_number
from equipoise.nn.fused_convs import FusedGATConv, FusedGATv2Conv
from equipoise.nn.fused_gcn import FusedGCNConv, ResidualGCNConv
from equipoise.nn.fused_stack import can_fuse, fused_forward
from equipoise.nn.fused_transformer import FusedTransformerConv
from equipoise.nn.hooks import has_hooks
from equipoise.nn.lipschitz_gat import LipschitzGATConv
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.nn.sparse_linear import feature_dropout

Skip = Literal["linear", "identity"]
Norm = Literal["layer", "batch"]
JumpingKnowledge = Literal["cat"]


class Stack(nn.Module):
    r"""A deep graph network: L layers of one kind with an activation φ between them,

    .. math::
        h^0 = x, \qquad h^l = \varphi(\mathrm{conv}^l(h^{l-1})) \quad (0 < l < L), \qquad h^L = \mathrm{conv}^L(h^{L-1})

    The layers, ``stack.convs`` in the order of execution, are PyG's on fused kernels. They have PyG's parameter names,
    so that ``stack.convs[l].state_dict()`` can be loaded into PyG's own layer and vice versa.

    Args:
        kind: ``"gatv2"``, ``"gat"``, ``"gcn"``, ``"omega-gat"``, ``"lipschitz-gat"`` or ``"transformer"``.
        widths: number of input features, hidden widths, number of classes: L + 1 numbers for L layers.
        heads: attention heads of every layer except the last, which has ``out_heads``.
        concat: concatenate heads, each of the width given in ``widths``, so that the next layer has heads × width
            inputs; otherwise average them.
        activation: ``"relu"``, ``"leaky-relu"`` (slope 0.01), ``"elu"``, ``"gelu"``, ``"tanh"`` or ``"identity"``.
        dropout: dropout probability of features between layers and of attention coefficients.
        share_weights: use one matrix for source and target nodes (``"gatv2"``, ``"omega-gat"``; other kinds always do).
        bias: whether layers have biases.
        skip: ``"linear"`` adds a learned matrix without bias to every layer, inside φ (parameter ``res``);
            ``"identity"`` adds the layer's input to its result, :math:`h + \varphi(\mathrm{conv}(h))`, wherever input
            and output are hidden features of equal width, that is never across the first or last layer. The linear
            skip of ``"transformer"`` is PyG's root weight.
        negative_slope: slope of the LeakyReLU in attention scores.
        attention_dropout: dropout probability of attention coefficients, if it differs from ``dropout``.
        add_self_loops: whether layers add self-loops to the graph; ``"transformer"`` never does.
        out_heads: attention heads of the last layer, which are averaged.
        input_dropout: dropout probability of the input features.
        norm: ``"layer"`` or ``"batch"`` normalises the result of every layer except the last, before φ.
        jk: ``"cat"`` lets the last layer read all hidden features, concatenated (jumping knowledge).
        recompute: save the activations of every √L-th layer only, and compute the others again in the backward pass:
            about one more forward pass for 2/√L of the memory.

    Shapes:
        - **input:** node features (nodes, widths[0]), dense or sparse, and ``edge_index`` (2, edges)
        - **output:** (nodes, widths[-1])

    Raises:
        ChoiceError: unknown ``kind``, ``activation``, ``skip``, ``norm`` or ``jk``.
        ArchitectureError: widths, heads or probabilities out of range, or options that ``kind`` does not have.

    Example:
        >>> Stack("gatv2", [1433, 64, 64, 7], heads=8)
        Stack(
          'gatv2', [1433, 64, 64, 7], heads=8, concat=True, dropout=0.0, skip=None
          (convs): ModuleList(
            (0): FusedGATv2Conv(1433, 64, heads=8)
            (1): FusedGATv2Conv(512, 64, heads=8)
            (2): FusedGATv2Conv(512, 7, heads=1)
          )
          (activation): ReLU()
        )
    """

    def __init__(
        self,
        kind: str,
        widths: Sequence[int],
        heads: int = 1,
        concat: bool = True,
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        share_weights: bool = True,
        bias: bool = False,
        skip: Skip | None = None,
        negative_slope: float = 0.2,
        attention_dropout: float | None = None,
        add_self_loops: bool = True,
        out_heads: int = 1,
        input_dropout: float = 0.0,
        norm: Norm | None = None,
        jk: JumpingKnowledge | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        _check_names(kind=kind, activation=activation, skip=skip, norm=norm, jk=jk)
        _check_counts(widths, heads, out_heads)
        _check_dropouts(dropout=dropout, attention_dropout=attention_dropout, input_dropout=input_dropout)
        _check_slope(negative_slope)
        _check_options(kind, max(heads, out_heads), share_weights, attention_dropout)
        widths = [int(width) for width in widths]  # PyG accepts int only, not NumPy integers
        heads, out_heads = int(heads), int(out_heads)
        self.kind, self.widths, self.heads, self.concat = kind, tuple(widths), heads, concat
        self.dropout, self.input_dropout, self.skip, self.jk = dropout, input_dropout, skip, jk
        self.recompute = recompute

        hidden = [heads * width if concat else width for width in widths[1:-1]]
        inputs = [widths[0], *hidden]
        if jk and hidden:
            inputs[-1] = sum(hidden)
        self.convs = nn.ModuleList(
            KINDS[kind](
                in_channels=in_channels,
                out_channels=out_channels,
                heads=heads if layer < len(hidden) else out_heads,
                concat=concat and (layer < len(hidden) or out_heads == 1),
                negative_slope=negative_slope,
                dropout=dropout if attention_dropout is None else attention_dropout,
                add_self_loops=add_self_loops,
                bias=bias,
                share_weights=share_weights,
                residual=skip == "linear",
            )
            for layer, (in_channels, out_channels) in enumerate(zip(inputs, widths[1:], strict=True))
        )
        self.norms = nn.ModuleList(NORMS[norm](width) for width in hidden) if norm else None
        self.activation = ACTIVATIONS[activation]()
        # Layer l ≥ 1 maps the l-th hidden features to the next ones; layer 0 maps the input to the first.
        equal_widths = [layer for layer, (before, after) in enumerate(pairwise(hidden), start=1) if before == after]
        self.identity_skips = frozenset(equal_widths if skip == "identity" else ())

    def reset_parameters(self) -> None:
        """Reinitialise all parameters as PyG does."""
        for module in (*self.convs, *(self.norms or ())):
            cast(MessagePassing, module).reset_parameters()

    def forward(self, x: Tensor, edge_index: Adj) -> Tensor:
        """Run the network.

        Args:
            x: node features (nodes, widths[0]), dense or sparse.
            edge_index: the graph.

        Returns:
            Output of the last layer, without activation.
        """
        dropout = self.training and (self.dropout or self.input_dropout)
        convs_only = not (self.identity_skips or self.norms or self.jk or dropout or self.recompute)
        if convs_only and can_fuse(list(self.convs), self.activation, x, edge_index):
            return fused_forward(list(self.convs), x, edge_index)
        if self.recompute and torch.is_grad_enabled() and not self.jk:  # which needs all activations at the end
            depth = len(self.convs)
            length = math.isqrt(depth - 1) + 1
            for first in range(0, depth, length):
                layers = range(first, min(first + length, depth))
                x = checkpoint(self._run_layers, layers, x, edge_index, use_reentrant=False)
            return x
        return self._run_layers(range(len(self.convs)), x, edge_index)

    def _run_layers(self, layers: range, h: Tensor, edge_index: Adj) -> Tensor:
        """Run consecutive layers, with the activations after them; the last layer of the stack has none."""
        last = len(self.convs) - 1
        hidden: list[Tensor] = []
        for layer in layers:
            conv = self.convs[layer]
            if self.jk and layer == last and hidden:
                h = torch.cat(hidden, dim=-1)
            # Dropout applies to the layer's input but not to an identity skip.
            z = feature_dropout(h, self.dropout if layer else self.input_dropout, self.training)
            out = self._hidden_layer(layer, conv, z, edge_index) if layer < last else conv(z, edge_index)
            h = h + out if layer in self.identity_skips else out
            hidden.append(h)
        return h

    def _hidden_layer(self, layer: int, conv: nn.Module, h: Tensor, edge_index: Adj) -> Tensor:
        """φ(norm(conv(h))), in one kernel if there is no norm, φ is a ReLU and no hook observes its input."""
        fusable = isinstance(self.activation, nn.ReLU) and isinstance(conv, FusedGATv2Conv | FusedGATConv)
        if self.norms is not None:
            return cast(Tensor, self.activation(self.norms[layer](conv(h, edge_index))))
        if fusable and not has_hooks(conv, self.activation):
            return cast(Tensor, conv(h, edge_index, relu=True))
        return cast(Tensor, self.activation(conv(h, edge_index)))

    def extra_repr(self) -> str:
        """Main options, as part of ``repr``."""
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in ("heads", "concat", "dropout", "skip"))
        return f"{self.kind!r}, {list(self.widths)}, {options}"


def _gatv2(**options: Any) -> MessagePassing:
    return FusedGATv2Conv(**options)


def _omega_gat(**options: Any) -> MessagePassing:
    return OmegaGATConv(**options)


def _gat(**options: Any) -> MessagePassing:
    del options["share_weights"]  # GAT has one matrix for source and target nodes
    return FusedGATConv(**options)


def _lipschitz_gat(**options: Any) -> MessagePassing:
    del options["share_weights"]
    return LipschitzGATConv(**options)


def _gcn(
    *, in_channels: int, out_channels: int, add_self_loops: bool, bias: bool, residual: bool, **_attention: Any
) -> MessagePassing:
    conv = ResidualGCNConv if residual else FusedGCNConv
    return conv(in_channels, out_channels, add_self_loops=add_self_loops, bias=bias)


def _transformer(
    *, add_self_loops: bool, negative_slope: float, share_weights: bool, residual: bool, **options: Any
) -> MessagePassing:
    del add_self_loops, negative_slope, share_weights
    return FusedTransformerConv(root_weight=residual, **options)


KINDS: dict[str, Callable[..., MessagePassing]] = {
    "gatv2": _gatv2,
    "gat": _gat,
    "gcn": _gcn,
    "omega-gat": _omega_gat,
    "lipschitz-gat": _lipschitz_gat,
    "transformer": _transformer,
}

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}

NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}

SKIPS = (None, "linear", "identity")
MAX_WIDTH = 2**31  # whose weights fit into no memory

CHOICES: dict[str, tuple[str | None, ...]] = {
    "kind": tuple(KINDS),
    "activation": tuple(ACTIVATIONS),
    "skip": SKIPS,
    "norm": (None, *NORMS),
    "jk": (None, "cat"),
}


def _check_names(**names: str | None) -> None:
    for option, name in names.items():
        if name not in CHOICES[option]:
            raise ChoiceError(option, name, map(str, CHOICES[option]))


def _check_counts(widths: Sequence[int], heads: int, out_heads: int) -> None:
    if not hasattr(widths, "__len__"):
        raise ArchitectureError(
            f"widths is a {type(widths).__name__}, not a list",
            remedy="start with the number of features and end with that of classes: [1433, 64, 7] gives two layers",
        )
    if len(widths) < 2:
        raise ArchitectureError(
            f"a stack needs at least two widths, got {len(widths)}",
            where=f"widths={list(widths)}",
            remedy="start with the number of features and end with that of classes: [1433, 64, 7] gives two layers",
        )
    counts: dict[str, object] = {f"widths[{i}]": width for i, width in enumerate(widths)}
    counts |= {"heads": heads, "out_heads": out_heads}
    for name, count in counts.items():
        if not isinstance(count, Integral) or not 1 <= int(count) < MAX_WIDTH:
            raise ArchitectureError(
                "widths and heads must be positive integers below 2³¹",
                where=f"{name}={count!r}",
                remedy="widths are the numbers of input features, hidden channels and classes; heads those of a layer",
            )


def _check_dropouts(**probabilities: float | None) -> None:
    for name, probability in probabilities.items():
        if probability is None and name == "attention_dropout":  # that of the features
            continue
        if not is_number(probability) or not 0 <= cast(float, probability) < 1:
            raise ArchitectureError(
                "a dropout probability must be in [0, 1)",
                where=f"{name}={probability!r}",
                remedy="pass the fraction of features or coefficients to zero during training, 0 for none",
            )


def _check_slope(negative_slope: float) -> None:
    if not isinstance(negative_slope, (int, float)) or not math.isfinite(negative_slope):
        raise ArchitectureError(
            "the slope of the LeakyReLU must be a finite number",
            where=f"negative_slope={negative_slope!r}",
            remedy="the usual slope is 0.2",
        )


def _check_options(kind: str, heads: int, share_weights: bool, attention_dropout: float | None) -> None:
    """Options that a kind does not have are an error, not ignored."""
    if kind == "gcn" and (heads != 1 or attention_dropout is not None):
        raise ArchitectureError(
            "gcn has no attention, so it has no heads and no attention dropout",
            where=f"heads={heads}, attention_dropout={attention_dropout}",
            remedy="omit both, or choose a kind with attention, such as gatv2",
        )
    if kind not in ("gatv2", "omega-gat") and not share_weights:
        raise ArchitectureError(
            f"{kind} has one weight matrix per layer, shared by source and target nodes",
            where="share_weights=False",
            remedy="omit it, or choose a kind with two matrices: gatv2, omega-gat",
        )
