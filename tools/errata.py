"""Show the errors of the paper by numbers: ``python tools/errata.py [NUMBER ...]``.

Each function prints a statement of "Are GATs Out of Balance?" next to what holds. docs/theory/errata.md explains them
under the same numbers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import torch
from scipy import stats
from torch_geometric.nn import GATv2Conv

import equipoise as eq
from equipoise.experiments.parser import load_experiment

FEATURES, WIDTH, CLASSES = 5, 8, 3
MARKED = {("actor", 2): "bal-o", ("cornell", 20): "bal-o", ("wisconsin", 5): "bal-x"}  # bold in Table 2


def separate_weights() -> None:
    """Erratum 1: the law for separate weights omits the target weights of the next layer."""
    law = _law_after_backward(share_weights=False)
    omitted = next(slot for slot in law.outgoing if slot.name.endswith("1.lin_r.weight"))
    printed = law.residual() + omitted.gradient_product()
    _print_residuals(law, printed, "without W_t of the next layer", "with it")


def attention_entry() -> None:
    """Erratum 2: δ contains the entry a[i], not the scalar product of the whole vector."""
    law = _law_after_backward(share_weights=True)
    entry = next(slot for slot in law.outgoing if slot.name.endswith("att")).gradient_product()
    printed = law.residual() + entry - entry.sum()
    _print_residuals(law, printed, "with ⟨a, ∇a⟩", "with a[i] ∇a[i]")


def value_of_c() -> None:
    """Erratum 3: c is the value of the difference, which is not zero; its derivative is."""
    law = _law_after_backward(share_weights=True)
    derivative = 2 * law.residual()
    print(f"  |c|: up to {float(law.imbalance().abs().max()):.1e}")
    print(f"  |dc/dt| under gradient flow, 2|δ|: up to {float(derivative.abs().max()):.1e}")


def last_layer() -> None:
    """Erratum 4: columns of the last looks-linear orthogonal matrix have squared norm 2 only after balancing."""
    generator = torch.Generator().manual_seed(0)
    for scheme in ("llortho", "bal-o"):
        model = eq.initialize_(eq.Stack("gatv2", [1433, 64, 64, 7]), scheme, generator=generator)
        squared = list(model.parameters())[-1].detach().square().sum(dim=0)
        print(f"  64 → 7 units, {scheme:7}: mean squared norm of a column {float(squared.mean()):.4f}")
    print(f"  n_L / (n_(L-1) / 2) = {7 / 32:.4f}")


def attention_variance() -> None:
    """Erratum 5: E a² in the text and in the authors' script."""
    torch.manual_seed(0)
    width = 64
    drawn = torch.cat([GATv2Conv(2, width).att.detach().flatten() for _ in range(200)])
    print(
        f"  PyG's attention of width {width}, mean square of {len(drawn)} entries: {float(drawn.square().mean()):.4f}"
    )
    print(f"  text, 2 / (1 + n): {2 / (1 + width):.4f}    script, 2 / (HC + C) with one head: {2 / (2 * width):.4f}")


def stopping() -> None:
    """Erratum 6: the loss at which training stops in the text and in the authors' script."""
    data = eq.load_dataset("texas")
    for stop_loss in (1e-4, 1e-5):
        generator = torch.Generator().manual_seed(0)
        widths = [data.num_features, *[64] * 4, data.classes]
        model = eq.initialize_(eq.Stack("gatv2", widths), "bal-o", generator=generator)
        history = eq.train(model, data, lr=0.05, epochs=5000, stop_loss=stop_loss)
        best = f"best model at epoch {history.best_epoch}, test accuracy {history.best_test_accuracy:.1%}"
        print(f"  Texas, 5 layers, stop at {stop_loss:.0e}: {len(history.loss)} epochs, {best}")


def lipschitz_table() -> None:
    """Erratum 7: the Bal_O column of Table 6 has other numbers than Table 2, and Table 4's where both have a cell."""
    lipschitz, sgd, adam = (load_experiment(name).published for name in ("lipschitz", "sgd", "variations-adam"))
    for (dataset, depth, variant), cell in lipschitz.items():
        if variant == "Bal_O Init." and (table2 := sgd.get((dataset, depth, "bal-o"))):
            table4 = adam.get(("none", depth, "bal-o")) if dataset == "cora" else None
            text = f"  {dataset:8} L = {depth:2}: Table 6 {cell['accuracy']:.1f}, Table 2 {table2['accuracy']:.2f}"
            print(text + (f", Table 4 {table4['accuracy']:.2f}" if table4 else ""))


def repeated_row() -> None:
    """Erratum 8: two rows of Table 4 have the same numbers."""
    published = load_experiment("variations-adam").published
    for variant in ("activation = ELU", "weight sharing = False"):
        cells = [published[variant, 5, scheme] for scheme in ("xav", "bal-x", "bal-o")]
        numbers = ", ".join(f"{cell['accuracy']:.2f} ± {cell['ci']:.2f}" for cell in cells)
        print(f"  Table 4, L = 5, {variant:23}: {numbers}")


def best_marks() -> None:
    """Erratum 9: three marks of the best value in Table 2 are not at the highest mean."""
    published = load_experiment("sgd").published
    for (dataset, depth), marked in MARKED.items():
        means = {scheme: published[dataset, depth, scheme]["accuracy"] for scheme in ("xav", "bal-x", "bal-o")}
        best = max(means, key=lambda scheme: means[scheme])
        print(f"  {dataset:9} L = {depth:2}: {marked} is marked with {means[marked]:.2f}, {best} has {means[best]:.2f}")


def impossible_intervals() -> None:
    """Erratum 10: some intervals of Table 7 are too wide for five accuracies."""
    for (dataset, depth, scheme), cell in load_experiment("gcn").published.items():
        mean, ci = cell["accuracy"], cell["ci"]
        if ci > (widest := widest_interval(mean, runs=5)):
            print(f"  {dataset} L = {depth}, {scheme:7}: {mean} ± {ci}, at most ± {widest:.1f} with five runs")


def first_layer() -> None:
    """Erratum 11: a row of the first Xavier matrix has squared norm 2n_0 / (n_1 + n_0), not 2n_1 / (n_1 + n_0)."""
    n_0, n_1 = 1433, 64
    model = eq.initialize_(eq.Stack("gatv2", [n_0, n_1, 7]), "xav", generator=torch.Generator().manual_seed(0))
    weight = next(parameter for parameter in model.parameters() if parameter.shape == (n_1, n_0))
    squared = weight.detach().square().sum(dim=1)
    print(f"  {n_0} features → {n_1} units: mean squared norm of a row {float(squared.mean()):.3f}")
    print(f"  as printed {2 * n_1 / (n_1 + n_0):.3f}, corrected {2 * n_0 / (n_1 + n_0):.3f}")


def widest_interval(mean: float, runs: int) -> float:
    """Largest half-width of a 95 % interval that accuracies from 0 to 100 with this mean can have."""
    deviation = math.sqrt(mean * (100 - mean) * runs / (runs - 1))  # of runs that reach 0 or 100
    return float(stats.t.ppf(0.975, runs - 1)) * deviation / math.sqrt(runs)


ERRATA: dict[int, Callable[[], None]] = dict(
    enumerate(
        (
            separate_weights,
            attention_entry,
            value_of_c,
            last_layer,
            attention_variance,
            stopping,
            lipschitz_table,
            repeated_row,
            best_marks,
            impossible_intervals,
            first_layer,
        ),
        start=1,
    )
)


def _law_after_backward(share_weights: bool) -> eq.Law:
    """The law of the first hidden layer of a GATv2 in float64, after a backward pass."""
    torch.manual_seed(0)
    widths = [FEATURES, WIDTH, WIDTH, CLASSES]
    model = eq.Stack("gatv2", widths, share_weights=share_weights).double()
    x, edge_index = torch.randn(30, FEATURES, dtype=torch.float64), torch.randint(0, 30, (2, 100))
    law = eq.discover(model, x, edge_index)[0]
    model(x, edge_index).square().mean().backward()
    return law


def _print_residuals(law: eq.Law, printed: torch.Tensor, as_printed: str, corrected: str) -> None:
    terms = max(float(slot.gradient_product().abs().max()) for slot in law.slots)
    print(f"  terms ⟨θ, ∇θ⟩: up to {terms:.1e}")
    print(f"  |δ| {as_printed}: up to {float(printed.abs().max()):.1e}")
    print(f"  |δ| {corrected}: up to {float(law.residual().abs().max()):.1e}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errata with these numbers, or all."""
    parser = argparse.ArgumentParser(description="Show the errors of the paper by numbers.")
    parser.add_argument(
        "numbers", nargs="*", type=int, metavar="NUMBER", help=f"1 to {len(ERRATA)}; all if none is given"
    )
    numbers = parser.parse_args(arguments).numbers or list(ERRATA)
    if unknown := [number for number in numbers if number not in ERRATA]:
        parser.error(f"there is no erratum {unknown[0]}; choose from 1 to {len(ERRATA)}")
    for number in numbers:
        print(str(ERRATA[number].__doc__).strip())
        ERRATA[number]()


if __name__ == "__main__":
    main()
