"""The named initialisation schemes and :func:`initialize_`, which applies them.

A chain of known layers is initialised by its structure. Any other network is initialised along its laws.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves

from equipoise.errors import BalanceError, ChoiceError, EquipoiseError, InitializationError
from equipoise.init.balance import Direction, ParameterValues, assign_, check_direction
from equipoise.init.chain import initial_values
from equipoise.init.gain import set_gain_
from equipoise.init.inferred_roles import output_growth
from equipoise.init.layers import Layer, layers_of, roles_of, traced_layers_of
from equipoise.init.matrices import MatrixInit, identity, orthogonal, xavier
from equipoise.init.network import balance_along_laws, draw_network, network_roles
from equipoise.init.trace import Inputs, LayerTrace, first_trace
from equipoise.laws.binding import positional_arguments
from equipoise.laws.discover import discover
from equipoise.laws.law import Law, check_laws_of
from equipoise.laws.probe import Probe
from equipoise.laws.rebalance import rebalance_
from equipoise.laws.validation import check_module, check_values, is_number

log = logging.getLogger("equipoise")


@dataclass(frozen=True)
class Scheme:
    """An initialisation scheme: how to draw weights, and whether to balance them.

    Attributes:
        hidden: matrix of a hidden layer, or of its looks-linear block.
        ends: matrix of the first and the last layer.
        looks_linear: whether matrices consist of a block and its mirror image.
        attention: whether attention is drawn (Xavier) or zero.
        balanced: whether the balancing procedure follows.
        beta: default squared norm for balancing.
        draws: whether weights are drawn; otherwise the model keeps them and only the balance changes.
    """

    hidden: MatrixInit = xavier
    ends: MatrixInit = xavier
    looks_linear: bool = False
    attention: bool = False
    balanced: bool = False
    beta: float = 2.0
    draws: bool = True


SCHEMES = {
    "xav": Scheme(attention=True),
    "xav-z": Scheme(),
    "bal-x": Scheme(balanced=True),
    "llortho": Scheme(orthogonal, orthogonal, looks_linear=True),
    "bal-o": Scheme(orthogonal, orthogonal, looks_linear=True, balanced=True),
    "identity": Scheme(identity),
    "bal-identity": Scheme(identity, balanced=True, beta=1.0),
    "llidentity": Scheme(identity, looks_linear=True),
    "bal-llidentity": Scheme(identity, looks_linear=True, balanced=True),
    "rebalanced": Scheme(attention=True, balanced=True, draws=False),
}


def initialize_(
    model: nn.Module,
    scheme: str = "bal-o",
    *,
    beta: float | Tensor | None = None,
    direction: Direction = "forward",
    generator: Generator | None = None,
    inputs: Any = None,
    laws: Sequence[Law] | None = None,
    calibrate: Any = False,
) -> nn.Module:
    r"""Initialise a network in place so that it trains at depth.

    Balanced schemes set the conserved quantity :math:`c_i = \sum_{in} \|\theta\|^2 - \sum_{out} \|\theta\|^2` to
    zero for every neuron of every law, so that gradients can move all layers. With ``"bal-o"`` a ReLU network is also
    linear at initialisation and its weights are orthogonal, so signals pass through any depth.

    ==================  =============================  =========  ========
    scheme              feature weights                attention  balanced
    ==================  =============================  =========  ========
    ``xav``             Xavier normal                  Xavier     no
    ``xav-z``           Xavier normal                  zero       no
    ``bal-x``           Xavier normal                  zero       yes
    ``llortho``         looks-linear orthogonal        zero       no
    ``bal-o``           looks-linear orthogonal        zero       yes
    ``identity``        identity, ends Xavier          zero       no
    ``bal-identity``    identity, ends Xavier          zero       yes
    ``llidentity``      looks-linear identity          zero       no
    ``bal-llidentity``  looks-linear identity          zero       yes
    ``rebalanced``      as they are                    as it is   yes
    ==================  =============================  =========  ========

    ``rebalanced`` keeps the function that the network computes and moves along its laws to the balanced network of
    least norm. The other balanced schemes set the gain of each layer.

    A chain of layers with known parameter roles (:mod:`equipoise.init.layers`) is initialised by its structure. Any
    other network, and any network under ``rebalanced``, is initialised along its laws: pass ``laws`` or ``inputs``
    unless it takes ``(x, edge_index)`` or ``(x,)``. The laws also tell the roles of parameters of unknown modules
    (:mod:`equipoise.init.inferred_roles`); those without a role keep their values up to a rescaling along the laws.
    The logger ``equipoise`` reports the imbalance achieved.

    Args:
        model: any network. Parameters stay the same objects, so existing optimizers stay valid. Register your own
            layer class with ``@equipoise.init.layers.roles_of.register(MyConv)``.
        scheme: one of the names above.
        beta: squared norm of each neuron's incoming weights in the first hidden layer (see
            :func:`~equipoise.balance_`). Default: 2, and 1 for ``bal-identity``.
        direction: ``"forward"`` balances from the first layer to the last, ``"reverse"`` from the last to the first.
        generator: source of random numbers. The same generator state gives the same weights, independent of torch's
            global random state. Default: the global generator.
        inputs: arguments of the model, such as ``(x, edge_index)``, or a PyG data object with their values.
        laws: the model's laws, as :func:`~equipoise.discover` returns them.
        calibrate: choose the gain that balance leaves free such that scores on ``inputs`` are small, and so the
            first loss is near log(classes), whatever the scale of the data (:func:`~equipoise.init.gain.set_gain_`).
            True, or the inputs themselves: ``calibrate=(x, edge_index)``.

    Returns:
        The same model.

    Raises:
        ModelError: if ``model`` is not a module, or has lazy parameters.
        ForwardError: if ``inputs`` lack an argument of the model.
        InitializationError: if the layers do not form a known chain and the model needs ``inputs``, it does not run on
            them, or ``calibrate`` lacks them.
        ArchitectureError: if a looks-linear scheme meets an odd hidden width in a chain.
        BalanceError: if a neuron has zero weights on one side only, or ``beta`` is not positive.
        LawError: if ``laws`` are not laws of this model.
        ChoiceError: if ``scheme`` or ``direction`` is unknown.

    Warns:
        UserWarning: if a looks-linear scheme meets a network without ReLU, or a balanced one a network that is not a
            chain and has no law.

    Example:
        >>> import torch
        >>> from torch_geometric.nn import GAT, GIN
        >>> model = GAT(1433, 64, num_layers=10, out_channels=7, v2=True, act="relu")
        >>> model = initialize_(model, "bal-o", generator=torch.Generator().manual_seed(0))
        >>> torch.allclose(model.convs[0].lin_l.weight.square().sum(dim=1), torch.tensor(2.0))
        True

        A network that is not a chain of known layers, and one that keeps its draw:

        >>> model = initialize_(GIN(6, 8, num_layers=3, out_channels=2), "bal-o")
        >>> x, edge_index = torch.rand(4, 6), torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> scores = model(x, edge_index)
        >>> torch.allclose(initialize_(model, "rebalanced")(x, edge_index), scores, rtol=1e-3)
        True
    """
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise ChoiceError("scheme", scheme, SCHEMES)
    check_module(model)
    check_values(model, (inputs, calibrate))
    arguments: Inputs | None = None if inputs is None else positional_arguments(model, inputs)
    gain_arguments = _gain_arguments(model, calibrate, arguments)
    arguments = gain_arguments if arguments is None else arguments
    settings = SCHEMES[scheme]
    laws = None if laws is None else check_laws_of(model, laws)
    _check_options(scheme, beta, direction, generator)
    layers, trace = _known_chain(model, arguments) if settings.draws else (None, None)
    if trace is None and (settings.looks_linear or laws is None):
        trace = first_trace(model, [name for name, module in model.named_modules() if roles_of(module)], arguments)
    if settings.looks_linear and trace is not None and not trace.rectified:
        warnings.warn(
            f"{scheme} makes a ReLU network linear at initialisation, but this network has no ReLU; "
            "bal-x makes no such assumption",
            stacklevel=2,
        )
    if arguments is None and trace is not None:
        arguments = trace.inputs
    beta = settings.beta if beta is None else beta
    with _unchanged_on_error(model):
        if layers is not None:
            assign_(initial_values(layers, scheme, settings, beta=beta, direction=direction, generator=generator))
            if settings.balanced and _has_other_parameters(model, layers):
                _balance_other_parameters(model, scheme, arguments, laws)
        else:
            laws = _find_laws(model, arguments) if laws is None else laws
            _initialize_along_laws(model, scheme, laws, arguments, beta=beta, direction=direction, generator=generator)
        if gain_arguments is not None:
            set_gain_(model, *gain_arguments)
    return model


def _check_options(scheme: str, beta: object, direction: object, generator: object) -> None:
    """Options are checked before any computation, also those that the scheme does not use."""
    settings = SCHEMES[scheme]
    check_direction(direction)
    if beta is not None and not (settings.balanced and settings.draws):
        raise InitializationError(
            f"{scheme} does not scale neurons to a norm and takes no beta",
            where=f"beta={beta}",
            remedy="leave out beta, or choose a balanced scheme such as bal-o",
        )
    if beta is not None and not is_number(beta) and not isinstance(beta, Tensor):
        raise BalanceError(
            f"beta must be a number or a tensor, got a {type(beta).__name__}", remedy="leave it out for the default"
        )
    if generator is not None and not isinstance(generator, Generator):
        raise InitializationError(
            f"generator must be a torch.Generator, got a {type(generator).__name__}",
            remedy="pass torch.Generator().manual_seed(0)",
        )


def _gain_arguments(model: nn.Module, calibrate: Any, arguments: Inputs | None) -> Inputs | None:
    """Arguments on which to calibrate the gain; None if it is not calibrated."""
    if not isinstance(calibrate, bool):
        return None if calibrate is None else positional_arguments(model, calibrate)
    if calibrate and arguments is None:
        raise InitializationError(
            "calibration needs inputs", remedy="pass calibrate=(x, edge_index), or inputs=(x, edge_index) as well"
        )
    return arguments if calibrate else None


@contextmanager
def _unchanged_on_error(model: nn.Module) -> Iterator[None]:
    saved: ParameterValues = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    try:
        yield
    except Exception:
        with torch.no_grad():
            for parameter, value in saved.items():  # without the check of assign_: they may have been NaN before
                parameter.copy_(value)
        raise


def _known_chain(model: nn.Module, inputs: Inputs | None) -> tuple[list[Layer] | None, LayerTrace | None]:
    """Return the layers of a chain and a trace; None for another network, and for laws between query and key."""
    try:
        layers, trace = traced_layers_of(model, inputs)
    except InitializationError:
        return None, None
    return None if any(layer.roles.query_key for layer in layers) else layers, trace


def _initialize_along_laws(
    model: nn.Module,
    scheme: str,
    laws: Sequence[Law],
    inputs: Inputs | None,
    *,
    beta: float | Tensor,
    direction: Direction,
    generator: Generator | None,
) -> None:
    settings = SCHEMES[scheme]
    if settings.draws:
        grows = None
        if inputs is not None:
            grows = output_growth(partial(Probe, model, tuple(inputs), {}, _all_outputs))
        roles = network_roles(model, laws, grows)
        values = draw_network(roles, laws, settings, generator)
        if settings.balanced:
            balance_along_laws(laws, roles.features, values, beta, direction)
        assign_(values)
    if settings.balanced:
        _rebalance(scheme, laws)


def _rebalance(scheme: str, laws: Sequence[Law]) -> None:
    """Remove the imbalance that is left, without changing the function, and report the result."""
    if not any(law.outgoing for law in laws):
        warnings.warn(f"{scheme}: the network has no law, so there is nothing to balance", stacklevel=4)
        return
    imbalance = rebalance_(laws)
    neurons = sum(law.neurons for law in laws if law.outgoing)
    log.info("%s: balanced %d neurons in %d laws, imbalance at most %.1e", scheme, neurons, len(laws), imbalance)


def _has_other_parameters(model: nn.Module, layers: Sequence[Layer]) -> bool:
    """Whether a chain has parameters between its layers, such as those of norms, that share laws with the layers."""
    known = {parameter for layer in layers for parameter in layer.roles.all}
    return any(parameter not in known for parameter in model.parameters())


def _balance_other_parameters(model: nn.Module, scheme: str, inputs: Inputs | None, laws: Sequence[Law] | None) -> None:
    try:
        laws = _find_laws(model, inputs) if laws is None else laws
    except InitializationError as error:
        warnings.warn(f"{scheme}: norm layers stay out of balance ({error.what}); {GIVE_INPUTS}", stacklevel=3)
    else:
        _rebalance(scheme, laws)


def _find_laws(model: nn.Module, inputs: Inputs | None) -> list[Law]:
    """Discover the laws of all outputs of the model."""
    if inputs is None:
        try:
            layers_of(model)  # raises an error that names the unknown layer
        except InitializationError as error:
            raise InitializationError(
                error.what, where=error.where, remedy=f"{GIVE_INPUTS}; or {error.remedy}"
            ) from error
        raise InitializationError("the model does not run on (x, edge_index)", remedy=GIVE_INPUTS)
    try:
        return discover(model, *inputs, output=_all_outputs)
    except EquipoiseError as error:
        raise InitializationError(
            f"the laws cannot be found: {error.what}", where=error.where, remedy=GIVE_INPUTS
        ) from error


def _all_outputs(outputs: Any) -> Any:
    """All tensors of a tuple or dictionary in one, by rows if they have the same width."""
    tensors = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point()]
    if isinstance(outputs, Tensor) or not tensors:
        return outputs
    widths = {tensor.shape[-1] if tensor.ndim else 1 for tensor in tensors}
    width = widths.pop() if len(widths) == 1 else 1
    return torch.cat([tensor.reshape(-1, width) for tensor in tensors])


GIVE_INPUTS = "pass the model's arguments, inputs=(x, edge_index), or its laws, laws=discover(model, …, output=…)"
