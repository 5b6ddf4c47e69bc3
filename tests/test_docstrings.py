"""Every public name is documented with its arguments, its result and a runnable example."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import equipoise

NAMES = [name for name in equipoise.__all__ if name != "__version__"]


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def methods(kind: type) -> list[tuple[str, Callable[..., Any]]]:
    """Public methods that the class itself defines."""
    return [
        (f"{kind.__name__}.{name}", member)
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member)
    ]


FUNCTIONS = [(name, getattr(equipoise, name)) for name in NAMES if inspect.isfunction(getattr(equipoise, name))]
CLASSES = [(name, getattr(equipoise, name)) for name in NAMES if inspect.isclass(getattr(equipoise, name))]
METHODS = [method for _, kind in CLASSES for method in methods(kind)]


@pytest.mark.parametrize(("name", "thing"), FUNCTIONS + CLASSES, ids=[name for name, _ in FUNCTIONS + CLASSES])
def test_a_public_name_has_an_example_that_runs(name: str, thing: Any) -> None:
    assert ">>> " in (thing.__doc__ or ""), f"{name} has no example"


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_public_function_documents_arguments_and_result(name: str, function: Callable[..., Any]) -> None:
    text = function.__doc__ or ""
    for parameter in parameters(function):
        assert f" {parameter}:" in text or f" {parameter} (" in text, f"{name} does not document {parameter}"
    assert "Returns:" in text, f"{name} does not say what it returns"
    assert "Raises:" in text, f"{name} does not say what it raises"


@pytest.mark.parametrize(("name", "function"), METHODS, ids=[name for name, _ in METHODS])
def test_a_public_method_documents_its_arguments(name: str, function: Callable[..., Any]) -> None:
    text = function.__doc__ or ""
    assert text, f"{name} has no docstring"
    if len(parameters(function)) > 1:
        assert "Args:" in text, f"{name} does not document its arguments"
