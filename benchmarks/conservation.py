"""Conservation laws on real data: δ and c of a deep GATv2 trained on Cora, and the effect of balance on its gradients.

Run it as ``python benchmarks/conservation.py [LAYERS] [EPOCHS] [SEEDS]``; with the defaults it takes a minute or two.
Every epoch is recorded, so that the accumulated drift of c can be compared with its prediction.
"""

import statistics
import sys

import torch

import equipoise as eq

LEARNING_RATES = {"sgd": 0.05, "adam": 0.0005}


def main(layers: int = 10, epochs: int = 25, seeds: int = 3) -> None:
    """Print the residual of the laws, the drift of c, and the ratio of first-layer gradients."""
    torch.set_num_threads(1)
    data = eq.load_dataset("cora")
    ratios = []
    print(f"Cora, {layers} layers of GATv2, width 64, {epochs} epochs, float32")
    for seed in range(seeds):
        gradients = {}
        for scheme, optimizer in (("xav", "sgd"), ("bal-o", "sgd"), ("bal-o", "adam")):
            frame, norm = record_run(data, layers, epochs, seed=seed, scheme=scheme, optimizer=optimizer)
            terms = column(frame, "balance/terms").median()
            delta = column(frame, "balance/delta").abs().max()
            line = f"seed {seed}, {scheme:<5} {optimizer:<4}  max |δ| {delta:.0e}, terms {terms:.0e}"
            if optimizer == "sgd":
                c = column(frame, "balance/c")
                drift = (c.loc[epochs] - c.loc[1]).abs().max()
                errors = column(frame, "balance/drift") - column(frame, "balance/predicted_drift")
                error = float(errors.groupby(level=["layer", "neuron"]).sum().abs().max()) / norm
                line += f"  max |c − c₀| {drift:.0e}, prediction error {error:.0e} of the squared weight norm"
                gradients[scheme] = column(frame, "gradient/features").loc[epochs, 1].item()
            print(line, flush=True)
        ratios.append(gradients["bal-o"] / gradients["xav"])
        values = ", ".join(f"{scheme} {gradient:.1e}" for scheme, gradient in gradients.items())
        print(f"seed {seed}, first layer's relative gradient at epoch {epochs}: {values}")
    print(f"bal-o / xav: {', '.join(f'{ratio:.0f}' for ratio in ratios)}, median {statistics.median(ratios):.0f}")


def record_run(data, layers: int, epochs: int, *, seed: int, scheme: str, optimizer: str):
    """Train one network; return its recording and the mean squared norm of a neuron's weights."""
    model = eq.Stack("gatv2", [data.num_features, *[64] * (layers - 1), data.classes])
    eq.initialize_(model, scheme, generator=torch.Generator().manual_seed(seed))
    laws = eq.discover(model, torch.rand(24, data.num_features), torch.randint(0, 24, (2, 72)))
    norm = statistics.mean(float(sum(law.norms()).mean()) for law in laws)
    recorder = eq.Recorder(model, laws, every=1, quantities=("gradient", "balance"))
    eq.train(model, data, optimizer=optimizer, lr=LEARNING_RATES[optimizer], epochs=epochs, record=recorder)
    return recorder.frame(), norm


def column(frame, quantity: str):
    """One quantity, indexed by epoch, layer and neuron."""
    return frame[frame.quantity == quantity].set_index(["epoch", "layer", "neuron"]).value


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
