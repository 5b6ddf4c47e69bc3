"""How schemes look in every figure: colour, line and marker, so that they are told apart in grey, too."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#333333"
CHARACTERS = 15  # of a caption, an inch
Dash = str | tuple[int, tuple[float, ...]]

# Dark is balanced, light is not; the marker tells the kind of weights.
LOOKS: dict[str, tuple[str, Dash, str]] = {
    "default": ("#9a9a9a", (0, (1, 1.2)), "o"),
    "xav": ("#9a9a9a", (0, (1, 1.2)), "o"),
    "xav-z": ("#c0792b", (0, (4, 2)), "s"),
    "bal-x": ("#2b7bba", (0, (7, 1.5, 1.5, 1.5)), "^"),
    "bal-o": ("#0b2e59", "solid", "D"),
    "llortho": ("#7fa8d1", (0, (5, 1)), "d"),
    "identity": ("#b8a03a", (0, (2, 1)), "P"),
    "bal-identity": ("#5b4d0c", "solid", "P"),
    "llidentity": ("#5fae8b", (0, (3, 1, 1, 1)), "X"),
    "bal-llidentity": ("#12543a", "solid", "X"),
}
OTHER: tuple[str, Dash, str] = ("#7d3c98", (0, (3, 1)), "v")

# The paper's names.
TITLES = {
    "xav": "Xav.",
    "xav-z": "Xav.+ZeroAtt",
    "bal-x": "Xav.+Bal",
    "bal-o": "LLortho+Bal",
    "llortho": "LLortho",
    "identity": "Identity",
    "bal-identity": "Identity+Bal",
    "llidentity": "LLidentity",
    "bal-llidentity": "LLidentity+Bal",
}


def look(scheme: str) -> dict[str, Any]:
    """What ``Axes.plot`` takes for the line of a scheme."""
    colour, dash, marker = LOOKS.get(scheme, OTHER)
    return {
        "color": colour,
        "linestyle": dash,
        "marker": marker,
        "markersize": 4.5,
        "linewidth": 1.6,
        "label": scheme,
    }


def finish(ax: Axes, what: str, over: str) -> None:
    """Title, axis and a grid that stays in the background."""
    ax.set_title(what, fontsize=10)
    ax.set_xlabel(over)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def caption(figure: Figure, text: str, settings: Mapping[str, Any]) -> None:
    """What is seen and under which settings, below the panels."""
    listed = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )
    width = int(CHARACTERS * figure.get_figwidth())
    lines = [line for part in (text, listed) for line in textwrap.wrap(part, width)]
    figure.supxlabel("\n".join(lines), fontsize=8.5, color=INK)
