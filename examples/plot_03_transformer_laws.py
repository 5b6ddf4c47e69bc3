r"""The laws of a transformer block
================================

Which parts of a transformer block can be rescaled without changing its output? This example discovers the laws of a
pre-norm encoder block, confirms each one over four orders of magnitude of :math:`\lambda`, and shows which parameters
have no law, and why.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import equipoise as eq

# %%
# A standard pre-norm block: PyTorch's own multi-head attention and a ReLU feed-forward network, each with a residual
# connection around it.


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(self.activation(self.up(self.norm2(x))))


torch.manual_seed(0)
block = EncoderBlock(width=16, heads=2, activation=nn.ReLU()).double()
tokens = torch.randn(4, 6, 16, dtype=torch.float64)  # batch, sequence, width

# %%
# There are five laws. ``in_proj_weight`` stacks queries, keys and values, and each of them takes part by its own rows:
# rows 0–15 are queries, 16–31 keys, 32–47 values.

laws = eq.discover(block, tokens)
for law in laws:
    print(law)

# %%
# From first to last:
#
# 1. the scale and shift of a layer norm against the columns that read them;
# 2. the queries against the keys, since attention scores depend on their product only;
# 3. the values against the columns of the output projection;
# 4. the second layer norm against the feed-forward network;
# 5. the hidden neurons of the feed-forward network, as in any ReLU network.
#
# Verify them: multiply the incoming weights of each law by :math:`\lambda`, divide the outgoing ones by
# :math:`\lambda`, and compare outputs. As a control, scale the queries and leave the keys alone.

names = ["norm1 / attention", "queries / keys", "values / output projection", "norm2 / feed-forward", "hidden neurons"]
scales = torch.logspace(-2, 2, 16, dtype=torch.float64)
expected = block(tokens).detach()


@torch.no_grad()
def relative_change(changed: nn.Module) -> float:
    return float((changed(tokens) - expected).norm() / expected.norm())


changes = {}
for name, law in zip(names, laws, strict=True):
    changes[name] = []
    for scale in scales:
        twin = copy.deepcopy(block)
        law.bind(twin).rescale_(scale.expand(law.neurons))
        changes[name].append(relative_change(twin))

control = []
for scale in scales:
    twin = copy.deepcopy(block)
    with torch.no_grad():
        twin.attention.in_proj_weight[:16] *= scale
        twin.attention.in_proj_bias[:16] *= scale
    control.append(relative_change(twin))

# %%
# Rescaling along a law leaves the output alone to float64 rounding. The control changes it by more than a quarter.

figure, ax = plt.subplots(figsize=(8, 4.4), layout="constrained")
ax.plot(scales, control, "k--", label="control: queries only")
for (name, change), marker in zip(changes.items(), "os^vD", strict=True):
    ax.plot(scales, change, marker=marker, markersize=5, linewidth=1, label=name)
ax.axhline(torch.finfo(torch.float64).eps, color="black", linewidth=0.8, linestyle=":")
ax.text(scales[0], 3e-16, "machine precision of float64", fontsize=8, va="bottom")
ax.set(xscale="log", yscale="log", ylim=(1e-17, 10), xlabel=r"scale $\lambda$", ylabel="relative change of the output")
ax.legend(ncols=2, loc="center")
ax.grid(alpha=0.3)
plt.show()
print(f"largest change along a law: {max(map(max, changes.values())):.1e}; control: {max(control):.2f}")

# %%
# What about the parameters that no law mentions? The residual stream has none, because it passes through identity
# connections from the block's input to its output. And if ReLU is replaced by GELU, the law of the hidden neurons
# disappears.

print(eq.explain(EncoderBlock(width=16, heads=2, activation=nn.GELU()), tokens.float()))

# %%
# A ReLU block has five laws, a GELU block four. The two laws inside attention, queries against keys and values against
# the output projection, do not depend on the activation, so every transformer with this attention has them.
