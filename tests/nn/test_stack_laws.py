"""The laws of stacks, discovered from gradients: one test per row of the table of laws."""

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.laws.discover import discover, verify
from equipoise.laws.law import Law
from equipoise.laws.slot import Slot
from equipoise.nn.stack import Stack

WIDTHS = [9, 6, 5, 3]
ATTENTION = {"gatv2": ["att[i]"], "omega-gat": ["att[i]"], "gat": ["att_src[i]", "att_dst[i]"], "gcn": []}


@pytest.fixture(scope="module")
def graph() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20, 9, generator=generator), torch.randint(20, (2, 70), generator=generator)


def sides(law: Law) -> tuple[set[str], set[str]]:
    return {str(slot) for slot in law.incoming}, {str(slot) for slot in law.outgoing}


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("skip", [None, "linear"])
def test_one_law_per_hidden_layer(kind: str, skip: Any, graph: tuple[Tensor, Tensor]) -> None:
    laws = discover(Stack(kind, WIDTHS, skip=skip), *graph)
    assert [law.neurons for law in laws] == [6, 5]
    matrices = ["lin_l" if kind in ("gatv2", "omega-gat") else "lin"] + (["res"] if skip else [])
    for layer, law in enumerate(laws):
        rows = {f"convs.{layer}.{matrix}.weight[i,:]" for matrix in matrices}
        columns = {f"convs.{layer + 1}.{matrix}.weight[:,i]" for matrix in matrices}
        assert sides(law) == (rows, columns | {f"convs.{layer}.{a}" for a in ATTENTION[kind]})


def test_omega_gat_with_separate_weights(graph: tuple[Tensor, Tensor]) -> None:
    law, _ = discover(Stack("omega-gat", WIDTHS, share_weights=False), *graph)
    assert sides(law) == (
        {"convs.0.lin_l.weight[i,:]", "convs.0.lin_r.weight[i,:]"},
        {"convs.0.att[i]", "convs.1.lin_l.weight[:,i]", "convs.1.lin_r.weight[:,i]"},
    )


def test_omega_gat_with_several_heads(graph: tuple[Tensor, Tensor]) -> None:
    law, _ = discover(Stack("omega-gat", WIDTHS, heads=2), *graph)
    assert law.neurons == 12
    assert sides(law) == ({"convs.0.lin_l.weight[i,:]"}, {"convs.0.att[i]", "convs.1.lin_l.weight[:,i]"})
    law, _ = discover(Stack("omega-gat", WIDTHS, heads=2, concat=False), *graph)
    assert law.neurons == 6
    assert sides(law) == ({"convs.0.lin_l.weight[6h+i,:]"}, {"convs.0.att[:,i]", "convs.1.lin_l.weight[:,i]"})


def test_bias_is_incoming(graph: tuple[Tensor, Tensor]) -> None:
    law, _ = discover(Stack("gcn", WIDTHS, bias=True), *graph)
    assert sides(law) == ({"convs.0.lin.weight[i,:]", "convs.0.bias[i]"}, {"convs.1.lin.weight[:,i]"})


def test_identity_skips_give_one_law_for_the_residual_stream(graph: tuple[Tensor, Tensor]) -> None:
    (law,) = discover(Stack("gatv2", [9, 6, 6, 6, 3], skip="identity"), *graph)
    assert law.neurons == 6
    rows = {f"convs.{layer}.lin_l.weight[i,:]" for layer in (0, 1, 2)}
    attention = {f"convs.{layer}.att[i]" for layer in (0, 1, 2)}
    assert sides(law) == (rows, attention | {f"convs.{layer}.lin_l.weight[:,i]" for layer in (1, 2, 3)})


def test_no_law_under_elu(graph: tuple[Tensor, Tensor]) -> None:
    assert discover(Stack("gatv2", WIDTHS, activation="elu"), *graph) == []


def test_lipschitz_gat_has_laws_per_head(graph: tuple[Tensor, Tensor]) -> None:
    laws = [sides(law) for law in discover(Stack("lipschitz-gat", WIDTHS, heads=2), *graph)]
    assert laws == [
        ({"convs.0.lin.weight[6i+k,:]"}, {"convs.1.lin.weight[:,6i+k]"}),
        ({"convs.0.att_src[i,:]", "convs.0.att_dst[i,:]"}, set()),
        ({"convs.1.lin.weight[5i+k,:]"}, {"convs.2.lin.weight[:,5i+k]"}),
        ({"convs.1.att_src[i,:]", "convs.1.att_dst[i,:]"}, set()),
        ({"convs.2.att_src[:]", "convs.2.att_dst[:]"}, set()),
    ]


def whole_tensor_slot(stack: Stack, name: str) -> Slot:
    shape = tuple(stack.get_parameter(name).shape)
    return Slot(stack, name, shape, 1, prod(shape))


@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, False)])
def test_lipschitz_gat_balances_whole_matrices(heads: int, concat: bool, graph: tuple[Tensor, Tensor]) -> None:
    stack = Stack("lipschitz-gat", WIDTHS, heads=heads, concat=concat)
    W = [whole_tensor_slot(stack, f"convs.{layer}.lin.weight") for layer in range(3)]
    assert max(verify(stack, [Law((W[0],), (W[1],)), Law((W[1],), (W[2],))], *graph)) < 1e-12


def test_lipschitz_gat_does_not_have_the_law_of_gat(graph: tuple[Tensor, Tensor]) -> None:
    gat, normalised = Stack("gat", WIDTHS), Stack("lipschitz-gat", WIDTHS)
    laws = discover(gat, *graph)
    assert max(verify(gat, laws, *graph)) < 1e-12
    assert min(verify(normalised, [law.bind(normalised) for law in laws], *graph)) > 1e-3
