"""Shared style of all plots: colours, lines, markers, titles, axes, captions, and saving to a file.

Colour, line and marker vary together, so that series remain distinguishable in greyscale. Every other module of
``plots`` takes its colours, line styles and markers from here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from equipoise.errors import EquipoiseError

Dash = str | tuple[int, tuple[float, ...]]

INK = "#333333"
WHITE, BLACK = "white", "black"
INCOMING, OUTGOING = "#c0392b", "#1f5f99"
DOTTED: Dash = (0, (1.5, 1.5))
DASHED: Dash = (0, (5, 2))
ZERO_LINE: Dash = (0, (1, 2))
HATCHES = ("", "///", "...", "xx")
MARKERS = ("o", "s", "^", "D")
INCOMING_MARKER, OUTGOING_MARKER, MEAN_MARKER = "^", "v", "o"

CAPTION_CHARACTERS_PER_INCH = 15
# Viridis, which is monotonic in lightness, up to a contrast of 3 to white; the page inverts lightness in dark mode.
LAYER_COLOURS, LIGHTEST = colormaps["viridis"], 0.6


class SchemeStyle(NamedTuple):
    """Colour, line style and marker of one initialisation scheme."""

    colour: str
    dash: Dash
    marker: str


# Balanced schemes are dark, unbalanced ones light; the marker encodes the family of weight matrices.
SCHEME_STYLES = {
    "default": SchemeStyle("#9a9a9a", (0, (1, 1.2)), "o"),
    "xav": SchemeStyle("#9a9a9a", (0, (1, 1.2)), "o"),
    "xav-z": SchemeStyle("#c0792b", (0, (4, 2)), "s"),
    "bal-x": SchemeStyle("#2b7bba", (0, (7, 1.5, 1.5, 1.5)), "^"),
    "bal-o": SchemeStyle("#0b2e59", "solid", "D"),
    "llortho": SchemeStyle("#7fa8d1", (0, (5, 1)), "d"),
    "identity": SchemeStyle("#b8a03a", (0, (2, 1)), "P"),
    "bal-identity": SchemeStyle("#5b4d0c", "solid", "P"),
    "llidentity": SchemeStyle("#5fae8b", (0, (3, 1, 1, 1)), "X"),
    "bal-llidentity": SchemeStyle("#12543a", "solid", "X"),
    "rebalanced": SchemeStyle("#8e2f5c", (0, (6, 1.5)), "v"),
}
OTHER_STYLE = SchemeStyle("#7d3c98", (0, (3, 1)), "v")


def line_style(scheme: str, **overrides: Any) -> dict[str, Any]:
    """Keyword arguments of ``Axes.plot`` for the line of a scheme."""
    colour, dash, marker = SCHEME_STYLES.get(scheme, OTHER_STYLE)
    style = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 4.5, "linewidth": 1.6, "label": scheme}
    return {**style, **overrides}


def layer_colour(layers: Sequence[int], layer: int) -> Any:
    """Colour of a layer, from dark (first) to light (last)."""
    first, last = min(layers), max(layers)
    return LAYER_COLOURS(LIGHTEST * (layer - first) / max(last - first, 1))


def add_layer_colourbar(figure: Figure, axes: Sequence[Axes], layers: Sequence[int]) -> None:
    """Add a horizontal colour bar from the first to the last layer below ``axes``."""
    colours = ListedColormap(LAYER_COLOURS(np.linspace(0, LIGHTEST, 256)))
    mappable = ScalarMappable(Normalize(min(layers), max(layers)), colours)
    bar = figure.colorbar(mappable, ax=axes, location="bottom", fraction=0.04, pad=0.02, aspect=50)
    bar.set_ticks([min(layers), max(layers)], labels=["first layer", "last layer"], fontsize=7)


def finish_axes(ax: Axes, title: str, xlabel: str) -> None:
    """Set title and x label, remove the top and right spines, and add a faint grid."""
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(xlabel)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def set_depth_axis(ax: Axes, depths: Sequence[int]) -> None:
    """Make the x axis logarithmic, with one tick per depth."""
    ax.set_xscale("log")
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.minorticks_off()


def add_caption(figure: Figure, text: str, settings: Mapping[str, Any]) -> None:
    """Write a caption below the panels: what they show, then the settings as ``name value`` pairs."""
    pairs = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in settings.items()
    )
    width = int(CAPTION_CHARACTERS_PER_INCH * figure.get_figwidth())
    lines = [line for paragraph in (text, pairs) for line in textwrap.wrap(paragraph, width)]
    figure.supxlabel("\n".join(lines), fontsize=8.5, color=INK)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format of the file's suffix, creating missing folders.

    Args:
        figure: figure to write.
        path: file with the suffix ``.png``, ``.svg`` or ``.pdf``.

    Returns:
        The path that was written.

    Raises:
        EquipoiseError: if the path is a folder, Matplotlib does not know the suffix, or the file cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise EquipoiseError(
            "the figure needs a file, not a folder", where=str(path), remedy=f"name a file: {path / 'figure.png'}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise EquipoiseError(
            f"the figure cannot be written: {error}",
            where=str(path),
            remedy="choose a writable path that ends in .png, .svg or .pdf",
        ) from error
    return path
