"""HTML math renderer that writes MathML, which browsers display without scripts, fonts or a network."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

# latex2mathml knows align* but neither aligned nor split, and sets each letter of \mathrm{softmax} as a variable.
ALIASES = [
    (re.compile(r"\\(begin|end)\{(?:aligned|split|gathered|align|gather\*?)\}"), r"\\\1{align*}"),
    (re.compile(r"\\(?:mathrm|operatorname)\{([A-Za-z][A-Za-z -]+)\}"), r"\\text{\1}"),
]
FENCES = re.compile(r"<mi>(&#x027E[89];)</mi>")
UNKNOWN = re.compile(r">\\([A-Za-z]+)<")


def to_mathml(latex: str, *, display: bool = False) -> str:
    r"""Converts LaTeX to a ``<math>`` element.

    Args:
        latex: source without delimiters. A formula of several lines (``\\``) is aligned at its ``&``.
        display: as a block of its own.

    Returns:
        The element as text.

    Raises:
        ValueError: if a command has no MathML equivalent.
    """
    source = latex.strip()
    if display and r"\\" in source and r"\begin{" not in source:
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    for pattern, replacement in ALIASES:
        source = pattern.sub(replacement, source)
    mathml = convert(source, display="block" if display else "inline")
    unknown = UNKNOWN.search(mathml)
    if unknown:
        raise ValueError(f"latex2mathml has no \\{unknown[1]}")
    return FENCES.sub(r'<mo stretchy="false">\1</mo>', mathml)


def _render(node: nodes.Element, *, display: bool) -> str:
    latex = node.astext()
    try:
        return to_mathml(latex, display=display)
    except Exception as error:  # any failure of the converter is a mistake in the formula
        logger.warning("formula %r cannot be converted to MathML: %s", latex, error, location=node, type="mathml")
        return f"<code>{escape(latex)}</code>"


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_render(node, display=False))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math-block"))
    translator.body.append(_render(node, display=True))
    if node.get("number"):
        translator.body.append(f'<span class="eqno">({node["number"]})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
