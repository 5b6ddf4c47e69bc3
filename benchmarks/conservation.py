"""The laws on real data: δ and c of a deep GATv2 while it trains on Cora, and what balance does to its gradients.

Run it as ``python benchmarks/conservation.py [LAYERS] [EPOCHS] [SEEDS]``; with the defaults it takes a minute or two.
Every epoch is recorded, so that the drift of c can be summed up and held against its prediction.
"""

import statistics
import sys

import torch

import equipoise as eq

RATES = {"sgd": 0.05, "adam": 0.0005}


def main(layers: int = 10, epochs: int = 25, seeds: int = 3) -> None:
    """Print what is left of each law, and the ratio of first-layer gradients."""
    torch.set_num_threads(1)
    data = eq.load_dataset("cora")
    ratios = []
    print(f"Cora, {layers} layers of GATv2, width 64, {epochs} epochs, float32")
    for seed in range(seeds):
        first = {}
        for scheme, optimizer in (("xav", "sgd"), ("bal-o", "sgd"), ("bal-o", "adam")):
            frame, size = recorded(data, layers, epochs, seed=seed, scheme=scheme, optimizer=optimizer)
            terms = column(frame, "balance/terms").median()
            delta = column(frame, "balance/delta").abs().max()
            text = f"seed {seed}, {scheme:<5} {optimizer:<4}  max |δ| {delta:.0e} of terms {terms:.0e}"
            if optimizer == "sgd":
                c = column(frame, "balance/c")
                moved = (c.loc[epochs] - c.loc[1]).abs().max()
                surplus = column(frame, "balance/drift") - column(frame, "balance/predicted_drift")
                left = float(surplus.groupby(level=["layer", "neuron"]).sum().abs().max()) / size
                text += f"  max |c − c₀| {moved:.0e}, of it not predicted {left:.0e} of the weights"
                first[scheme] = column(frame, "gradient/features").loc[epochs, 1].item()
            print(text, flush=True)
        ratios.append(first["bal-o"] / first["xav"])
        print(f"seed {seed}, first layer at epoch {epochs}: " + ", ".join(f"{s} {g:.1e}" for s, g in first.items()))
    print(f"bal-o / xav: {', '.join(f'{ratio:.0f}' for ratio in ratios)}, median {statistics.median(ratios):.0f}")


def recorded(data, layers: int, epochs: int, *, seed: int, scheme: str, optimizer: str):
    """The frame of one run, and the mean squared norm of a neuron's weights."""
    model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes])
    eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(seed))
    laws = eq.discover(model, torch.rand(24, data.num_features), torch.randint(0, 24, (2, 72)))
    size = statistics.mean(float(sum(law.norms()).mean()) for law in laws)
    record = eq.Recorder(model, laws, every=1, quantities=("gradient", "balance"))
    eq.train(model, data, optimizer=optimizer, lr=RATES[optimizer], epochs=epochs, record=record)
    return record.frame(), size


def column(frame, quantity: str):
    """One quantity by epoch, layer and neuron."""
    return frame[frame.quantity == quantity].set_index(["epoch", "layer", "neuron"]).value


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
