"""A model's layers in the order in which they run, each with its parts."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from equipoise.errors import PartsError
from equipoise.init.parts import PARTS, Parts, parts_of
from equipoise.laws.checks import check_module


@dataclass(frozen=True)
class Layer:
    """One layer of a chain.

    Attributes:
        name: its name in the model.
        parts: what it is made of.
        reads: the numbers of the layers whose neurons it reads, side by side: the one before, or, where features of
            several layers are concatenated (jumping knowledge), all of these; none for the first layer.
        widths: how many features it reads of each; all of its input for the first layer.
    """

    name: str
    parts: Parts
    reads: tuple[int, ...]
    widths: tuple[int, ...]


def layers_of(model: nn.Module) -> list[Layer]:
    """The layers of a chain, first to last; a named error for anything that is none.

    The order is that of a trial run of a copy on a tiny graph, ``model(x, edge_index)``; a model that is called
    otherwise is taken in the order in which its layers were registered.
    """
    check_module(model)
    found = _find(model)
    _check_complete(model, found)
    return _chain({name: found[name] for name in _run_order(model, found)})


def _find(model: nn.Module) -> dict[str, Parts]:
    """Outermost modules with parts, in the order of registration; what is inside of them belongs to them."""
    found: dict[str, Parts] = {}
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}." if outer else "") for outer in found):
            continue
        parts = parts_of(module)
        if parts is not None:
            found[name] = parts
        elif isinstance(module, MessagePassing):
            raise PartsError(
                f"nobody has said what a {type(module).__name__} is made of",
                where=name or type(model).__name__,
                remedy=f"register it: equipoise.init.parts.PARTS[{type(module).__name__}] = lambda conv: "
                "Parts(features=(conv.lin.weight,), attention=(conv.att,)); "
                f"known are {', '.join(sorted({kind.__name__ for kind in PARTS}))}",
            )
    return found


def _check_complete(model: nn.Module, found: dict[str, Parts]) -> None:
    if not found:
        raise PartsError(
            f"{type(model).__name__} has no layer that can be initialised",
            remedy=f"known are {', '.join(sorted({kind.__name__ for kind in PARTS}))}; "
            "name the parts of others in equipoise.init.parts.PARTS",
        )
    known = {id(parameter) for parts in found.values() for parameter in parts.all}
    loose = [name for name, p in model.named_parameters() if id(p) not in known and sum(s > 1 for s in p.shape) > 1]
    if loose:
        owners = {type(model.get_submodule(name.rpartition(".")[0])).__name__ for name in loose}
        raise PartsError(
            f"weights that belong to no known layer ({', '.join(sorted(owners))})",
            where=", ".join(loose),
            remedy="name the parts of the module that owns them: equipoise.init.parts.PARTS[Kind] = lambda m: Parts(…)",
        )


def _run_order(model: nn.Module, found: dict[str, Parts]) -> list[str]:
    registered = list(found)
    if len(registered) == 1:
        return registered
    for width in dict.fromkeys(parts.width_in for parts in found.values()):
        seen = _trial(model, registered, width)
        if set(seen) == set(registered):
            return list(dict.fromkeys(seen))
    return registered


def _trial(model: nn.Module, names: list[str], width: int) -> list[str]:
    """The layers' names as a copy calls them on three nodes in a ring; empty if it cannot be called that way."""
    seen: list[str] = []
    state = torch.get_rng_state()
    try:
        trial = copy.deepcopy(model).cpu().eval()
        for name in names:
            trial.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: seen.append(name))
        x = torch.ones(3, width, dtype=next(trial.parameters()).dtype)
        with torch.no_grad():
            trial(x, torch.tensor([[0, 1, 2], [1, 2, 0]]))
    except Exception:  # whatever a user's forward raises: it wants other inputs than these
        return []
    finally:
        torch.set_rng_state(state)
    return seen


def _chain(found: dict[str, Parts]) -> list[Layer]:
    """The layers with what they read, as their widths tell: the layer before, or the last few concatenated."""
    layers: list[Layer] = []
    for number, (name, parts) in enumerate(found.items()):
        widths = [layer.parts.width_out for layer in layers]
        first = next((k for k in reversed(range(number)) if sum(widths[k:]) == parts.width_in), None)
        if number and first is None:
            raise PartsError(
                f"the layers are no chain: {name} reads {parts.width_in} features, "
                f"{layers[-1].name} writes {widths[-1]}",
                where=" → ".join(found),
                remedy="initialise the parts that are chains one by one: initialize_(model.part, scheme)",
            )
        reads = tuple(range(first or 0, number))
        layers.append(Layer(name, parts, reads, tuple(widths[k] for k in reads) or (parts.width_in,)))
    return layers
