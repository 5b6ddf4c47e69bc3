import pytest

from equipoise import errors
from equipoise.errors import ChoiceError, EquipoiseError


def test_all_exceptions_share_one_base_class():
    exceptions = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    exceptions = [exception for exception in exceptions if not issubclass(exception, Warning)]
    assert len(exceptions) > 5
    assert all(issubclass(exception, EquipoiseError) for exception in exceptions)


def test_message_contains_problem_location_and_remedy():
    error = EquipoiseError("it broke", where="here", remedy="fix it")
    assert str(error) == "it broke\n  where:  here\n  remedy: fix it"
    assert str(EquipoiseError("it broke")) == "it broke"


def test_choice_error_lists_choices_and_suggests_the_closest():
    with pytest.raises(
        EquipoiseError, match=r"unknown fruit 'aple'(.|\n)*did you mean 'apple'\? choose one of: apple, pear"
    ):
        raise ChoiceError("fruit", "aple", ["apple", "pear"])
    assert "did you mean" not in str(ChoiceError("fruit", "xyz", ["apple"]))
