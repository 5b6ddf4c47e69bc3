"""Directive ``command-help``: the options of every command, read from the command line's own definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MARKUP = re.compile(r"\[/?(?:bold|dim|italic|green|yellow|red|cyan|link[^\]]*)\]")
CODE = re.compile(r"`([^`]+)`")


class CommandHelp(SphinxDirective):
    """Documents all commands below ``equipoise``: usage, description, arguments, options, example."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Parses the generated reStructuredText at the place of the directive.

        Returns:
            One section per command.
        """
        from equipoise.cli import app  # noqa: PLC0415 — imported with the directive, not with the configuration

        lines = StringList(list(_document(typer.main.get_command(app), "equipoise")), source="equipoise --help")
        container = nodes.Element()
        container.document = self.state.document
        self.state.nested_parse(lines, self.content_offset, container, match_titles=True)
        return container.children


def _document(command: Any, path: str, parent: Any = None) -> Iterator[str]:
    """The command and its subcommands as reStructuredText."""
    context = command.make_context(path, [], parent=parent, resilient_parsing=True)
    children = getattr(command, "commands", {})
    if parent is not None:
        yield from (path, "-" * len(path), "")
    yield from _paragraphs(command.help or "")
    arguments = [_names(p, context) for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([path, *(["COMMAND"] if children else ["[OPTIONS]"]), *arguments])
    yield from (".. code-block:: console", "", f"   $ {usage}", "", f".. program:: {path}", "")
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (f".. option:: {_names(parameter, context)}", "", f"   {_inline(record[1])}", "")
    if command.epilog:
        yield from _example(command.epilog)
    for name, child in children.items():
        yield from _document(child, f"{path} {name}", context)


def _names(parameter: Any, context: Any) -> str:
    """Names and metavariable as ``--help`` prints them, for an argument without its type."""
    names: str = parameter.get_help_record(context)[0]
    return names.partition(" <")[0] if parameter.param_type_name == "argument" else names.replace(" / ", ", ")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield from (_inline(" ".join(paragraph.split())), "")


def _example(epilog: str) -> Iterator[str]:
    title, _, commands = epilog.partition(":")
    yield from (f"{title}:", "", ".. code-block:: console", "")
    yield from (f"   $ {command.strip()}" for command in commands.split("|"))
    yield ""


def _inline(text: str) -> str:
    """Removes the terminal's markup and escapes what reStructuredText would read as its own."""
    plain = re.sub(r"([*|\\])", r"\\\1", MARKUP.sub("", text)).replace("  [", " [")
    return CODE.sub(r"``\1``", plain)


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive ``command-help``."""
    app.add_directive("command-help", CommandHelp)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
