"""A deep network in one line: kind × widths × heads × skip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, cast

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import Adj

from equipoise.errors import ArchitectureError, ChoiceError
from equipoise.nn.chain import can_chain, chained
from equipoise.nn.features import dropped
from equipoise.nn.gat import FusedGATConv
from equipoise.nn.gatv2 import FusedGATv2Conv
from equipoise.nn.gcn import FusedGCNConv
from equipoise.nn.lipschitz import LipschitzGATConv
from equipoise.nn.looking import watched
from equipoise.nn.omega_gat import OmegaGATConv
from equipoise.nn.residual_gcn import ResidualGCNConv

Skip = Literal["linear", "identity"]


class Stack(nn.Module):
    r"""L graph layers of one kind with an activation φ between them:

    .. math::
        h^0 = x, \qquad h^l = \varphi(\mathrm{conv}^l(h^{l-1})) \quad (0 < l < L), \qquad h^L = \mathrm{conv}^L(h^{L-1})

    The layers are PyG's on fused kernels (``stack.convs``, in the order in which they run), with PyG's parameter names,
    so that ``stack.convs[l].state_dict()`` moves to PyG's own layer and back.

    Args:
        kind: ``"gatv2"``, ``"gat"``, ``"gcn"``, ``"omega-gat"`` or ``"lipschitz-gat"``.
        widths: features in, hidden widths, classes out: L + 1 numbers for L layers.
        heads: attention heads of every layer but the last, which has ``out_heads``.
        concat: concatenates heads, each as wide as ``widths`` says, so the next layer reads heads × width features;
            otherwise heads are averaged.
        activation: ``"relu"``, ``"leaky-relu"`` (slope 0.01), ``"elu"``, ``"gelu"``, ``"tanh"`` or ``"identity"``.
        dropout: of features between layers, and of attention coefficients.
        share_weights: one matrix for source and target (``"gatv2"`` and ``"omega-gat"``; the others always do).
        bias: whether layers have biases.
        skip: ``"linear"`` adds a learned matrix without bias to every layer, inside φ (parameter ``res``);
            ``"identity"`` adds the layer's input to its result, :math:`h + \varphi(\mathrm{conv}(h))`, from one hidden
            width to an equal one: never over the first layer or the last.
        negative_slope: of the leaky-ReLU in attention scores.
        attention_dropout: of attention coefficients, where it differs from ``dropout``.
        add_self_loops: whether layers add self-loops to the graph.
        out_heads: attention heads of the last layer; several are averaged.
        input_dropout: of the features that the first layer reads.

    Shapes:
        - input: node features (nodes, widths[0]), dense or sparse as PyG's layers take them; ``edge_index``
        - output: (nodes, widths[-1])

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
    ) -> None:
        super().__init__()
        _check_names(kind, activation, skip)
        _check_counts(widths, heads, out_heads)
        _check_dropouts(dropout=dropout, attention_dropout=attention_dropout, input_dropout=input_dropout)
        _check_fit(kind, max(heads, out_heads), share_weights, attention_dropout)
        widths = [int(width) for width in widths]  # PyG tells a number of features from a pair by its type
        self.kind, self.widths, self.heads, self.concat = kind, tuple(widths), heads, concat
        self.dropout, self.input_dropout, self.skip = dropout, input_dropout, skip

        hidden = [heads * width if concat else width for width in widths[1:-1]]
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
            for layer, (in_channels, out_channels) in enumerate(zip([widths[0], *hidden], widths[1:], strict=True))
        )
        self.activation = ACTIVATIONS[activation]()
        # Layer 0 leads from the input to the first of the hidden features, layer l from the l-th of them to the next.
        alike = [layer for layer, (before, after) in enumerate(pairwise(hidden), start=1) if before == after]
        self.carried = frozenset(alike if skip == "identity" else ())

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as PyG does."""
        for conv in self.convs:
            cast(MessagePassing, conv).reset_parameters()

    def forward(self, x: Tensor, edge_index: Adj) -> Tensor:
        """The last layer's output, without activation."""
        plain = not (self.carried or (self.training and (self.dropout or self.input_dropout)))
        if plain and can_chain(list(self.convs), self.activation, x, edge_index):
            return chained(list(self.convs), x, edge_index)
        h, last = x, len(self.convs) - 1
        for layer, conv in enumerate(self.convs):
            # Dropped is what a layer reads, so that an identity skip carries its features whole.
            read = dropped(h, self.dropout if layer else self.input_dropout, self.training)
            out = self._activated(conv, read, edge_index) if layer < last else conv(read, edge_index)
            h = h + out if layer in self.carried else out
        return h

    def _activated(self, conv: nn.Module, h: Tensor, edge_index: Adj) -> Tensor:
        """φ(conv(h)), in one pass if φ is a ReLU and nobody needs what goes into it."""
        together = isinstance(self.activation, nn.ReLU) and isinstance(conv, FusedGATv2Conv | FusedGATConv)
        if together and not watched(conv, self.activation):
            return cast(Tensor, conv(h, edge_index, relu=True))
        return cast(Tensor, self.activation(conv(h, edge_index)))

    def extra_repr(self) -> str:
        options = ("heads", "concat", "dropout", "skip")
        listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in options)
        return f"{self.kind!r}, {list(self.widths)}, {listed}"


def _gatv2(**options: Any) -> MessagePassing:
    return FusedGATv2Conv(**options)


def _omega_gat(**options: Any) -> MessagePassing:
    return OmegaGATConv(**options)


def _gat(**options: Any) -> MessagePassing:
    del options["share_weights"]  # one matrix serves source and target, always
    return FusedGATConv(**options)


def _lipschitz_gat(**options: Any) -> MessagePassing:
    del options["share_weights"]
    return LipschitzGATConv(**options)


def _gcn(
    *, in_channels: int, out_channels: int, add_self_loops: bool, bias: bool, residual: bool, **_attention: Any
) -> MessagePassing:
    conv = ResidualGCNConv if residual else FusedGCNConv
    return conv(in_channels, out_channels, add_self_loops=add_self_loops, bias=bias)


KINDS: dict[str, Callable[..., MessagePassing]] = {
    "gatv2": _gatv2,
    "gat": _gat,
    "gcn": _gcn,
    "omega-gat": _omega_gat,
    "lipschitz-gat": _lipschitz_gat,
}

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}

SKIPS = (None, "linear", "identity")


def _check_names(kind: str, activation: str, skip: str | None) -> None:
    if kind not in KINDS:
        raise ChoiceError("kind", kind, KINDS)
    if activation not in ACTIVATIONS:
        raise ChoiceError("activation", activation, ACTIVATIONS)
    if skip not in SKIPS:
        raise ChoiceError("skip", skip, map(str, SKIPS))


def _check_counts(widths: Sequence[int], heads: int, out_heads: int) -> None:
    if len(widths) < 2:
        raise ArchitectureError(
            f"a stack needs at least two widths, got {len(widths)}",
            where=f"widths={list(widths)}",
            remedy="give the number of features first and that of classes last: [1433, 64, 7] makes two layers",
        )
    counts: dict[str, object] = {f"widths[{place}]": n for place, n in enumerate(widths)}
    counts |= {"heads": heads, "out_heads": out_heads}
    for name, count in counts.items():
        if not isinstance(count, Integral) or count < 1:
            raise ArchitectureError(
                "widths and heads must be whole numbers, 1 or more",
                where=f"{name}={count!r}",
                remedy="widths are features in, hidden widths, classes out; heads are those of a hidden layer",
            )


def _check_dropouts(**probabilities: float | None) -> None:
    for name, probability in probabilities.items():
        if probability is not None and not 0 <= probability < 1:
            raise ArchitectureError(
                "a dropout probability must be at least 0 and less than 1",
                where=f"{name}={probability!r}",
                remedy="it is the share of features or coefficients set to zero in training: 0 for none",
            )


def _check_fit(kind: str, heads: int, share_weights: bool, attention_dropout: float | None) -> None:
    """What a kind has no use for is an error, not ignored."""
    if kind == "gcn" and (heads != 1 or attention_dropout is not None):
        raise ArchitectureError(
            "gcn has no attention, so neither heads nor dropout of attention",
            where=f"heads={heads}, attention_dropout={attention_dropout}",
            remedy="leave both out, or choose a kind with attention: gatv2",
        )
    if kind not in ("gatv2", "omega-gat") and not share_weights:
        raise ArchitectureError(
            f"{kind} has one weight matrix a layer, for source and target alike",
            where="share_weights=False",
            remedy="leave it out, or choose a kind with two: gatv2, omega-gat",
        )
