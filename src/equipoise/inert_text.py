"""Text that others wrote, in experiment files and results: made inert for terminals and spreadsheets."""

from __future__ import annotations

import re
import unicodedata

# Control and format characters: escape sequences of terminals, marks that reverse the direction of text.
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # how a cell begins that a spreadsheet takes for a formula


def hidden_characters(text: str) -> list[str]:
    r"""Return the characters of a text that a terminal acts on or does not show, except tabs and line breaks.

    Args:
        text: any text.

    Returns:
        The characters, in order.

    Example:
        >>> hidden_characters("plain\n"), hidden_characters("\x1b[2J")
        ([], ['\x1b'])
    """
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in HIDDEN_CATEGORIES]


def printable(text: str) -> str:
    r"""Replace hidden characters by their escapes, so that a terminal shows them instead of acting on them.

    Args:
        text: any text.

    Returns:
        The text without hidden characters.

    Example:
        >>> print(printable("\x1b[2J\u202eabc"))
        \x1b[2J\u202eabc
    """
    hidden = set(hidden_characters(text))
    return "".join(c.encode("unicode_escape").decode() if c in hidden else c for c in text)


def escape_formula(text: str) -> str:
    """Prefix an apostrophe to a text that a spreadsheet would take for a formula.

    Args:
        text: any text.

    Returns:
        A text that :func:`unescape_formula` turns back.

    Example:
        >>> escape_formula("=1+1"), escape_formula("plain"), unescape_formula("'=1+1")
        ("'=1+1", 'plain', '=1+1')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """Remove the apostrophe that :func:`escape_formula` added."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
