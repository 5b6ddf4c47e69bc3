"""Discovery and verification of rescaling laws of any network: the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from equipoise.laws.law import Law, check_laws
from equipoise.laws.probe import Probe
from equipoise.laws.progress import Progress
from equipoise.laws.search import search
from equipoise.laws.validation import OutputSelector
from equipoise.laws.verification import largest_change


def discover(
    model: nn.Module, *inputs: Any, output: OutputSelector | None = None, sample: bool = True, **kwargs: Any
) -> list[Law]:
    """Find every rescaling law of a model.

    A law multiplies the incoming weights of neuron i by λ_i and its outgoing weights by 1/λ_i without changing the
    function. The search runs on a float64 copy with random parameters. The model, its gradients, buffers and training
    mode, and the global random state do not change.

    Laws do not depend on the graph. A graph among the inputs (``edge_index`` with features of nodes and edges, a sparse
    adjacency matrix, dictionaries of a heterogeneous model, a PyG data object) is therefore replaced by a small induced
    subgraph, with every type of node and edge. The logger ``equipoise`` reports its size.

    Args:
        model: Any network. Laws are those of its current mode (training or evaluation). Lazy parameters are initialised
            on the copy only.
        inputs: Positional arguments of the model, or a PyG ``Data`` or ``HeteroData`` that holds them under the names
            of the arguments. Floating-point entries are perturbed but keep their sign.
        output: Function that selects the tensor to differentiate if the model does not return a single tensor.
        sample: Whether to search on a subgraph of a large graph.
        kwargs: Keyword arguments of the model.

    Returns:
        The laws, ordered from input to output. Each was verified by rescaling with λ from 1e-5 to 1e5, at random
        parameters and at the model's own, with a relative change of the output of at most 1e-9.

    Raises:
        ModelError: The model is not a module, has nothing to train, or cannot be copied.
        ForwardError: The model fails on the inputs.
        OutputError: The output is not a finite, differentiable tensor.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> for law in eq.discover(mlp, torch.randn(5, 3)):
        ...     print(law)
        0.weight[i,:] + 0.bias[i] = 2.weight[:,i]   (4 neurons)

        A squared ReLU has degree 2, so the exponents of its law are 1 and −2:

        >>> class Squared(nn.Module):
        ...     def forward(self, x):
        ...         return x.relu() ** 2
        >>> (law,) = eq.discover(nn.Sequential(nn.Linear(3, 4), Squared(), nn.Linear(4, 2)), torch.randn(5, 3))
        >>> print(law)
        0.weight[i,:] + 0.bias[i] = 2 × 2.weight[:,i]   (4 neurons)
        >>> law.conserved
        '‖0.weight[i,:]‖² + ‖0.bias[i]‖² − 2 ‖2.weight[:,i]‖²'
    """
    with torch.inference_mode(False), torch.enable_grad(), Progress("discover") as progress:
        return search(Probe(model, inputs, kwargs, output, sample), progress).laws


def verify(
    model: nn.Module,
    laws: Sequence[Law],
    *inputs: Any,
    output: OutputSelector | None = None,
    sample: bool = True,
    **kwargs: Any,
) -> list[float]:
    """Measure by how much rescaling along each law changes the output.

    Rescales a float64 copy by λ from 1e-5 to 1e5, with random parameters and with the model's own; the model itself
    does not change.

    Args:
        model: The network to rescale.
        laws: Laws of this model, or of another one with the same parameter names and shapes.
        inputs: Positional arguments of the model, as for :func:`discover`.
        output: Function that selects the tensor to compare if the model does not return a single tensor.
        sample: Whether to use a subgraph of a large graph.
        kwargs: Keyword arguments of the model.

    Returns:
        The relative change of the output, one number per law, about 1e-15 if the law holds, much larger otherwise.

    Raises:
        LawError: ``laws`` is not a list of laws, or a law does not match the model.
        ModelError: The model is not a module, has nothing to train, or cannot be copied.
        ForwardError: The model fails on the inputs.
        OutputError: The output is not a finite, differentiable tensor.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import equipoise as eq
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> x = torch.randn(5, 3)
        >>> max(eq.verify(mlp, eq.discover(mlp, x), x)) < 1e-12
        True
    """
    with torch.inference_mode(False), torch.enable_grad():
        laws = check_laws(laws)
        probe = Probe(model, inputs, kwargs, output, sample)
        probe.values.samples = probe.gradient_products(2)
        return [largest_change(probe, [law]) for law in laws]
