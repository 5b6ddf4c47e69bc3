import pytest

from equipoise import errors
from equipoise.errors import ChoiceError, EquipoiseError


def test_one_family():
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(kinds) > 5
    assert all(issubclass(kind, EquipoiseError) for kind in kinds)


def test_says_what_where_and_the_remedy():
    error = EquipoiseError("it broke", where="here", remedy="mend it")
    assert str(error) == "it broke\n  where:  here\n  remedy: mend it"
    assert str(EquipoiseError("it broke")) == "it broke"


def test_a_choice_lists_all_and_suggests_the_nearest():
    with pytest.raises(
        EquipoiseError, match=r"unknown fruit 'aple'(.|\n)*did you mean 'apple'\? choose one of: apple, pear"
    ):
        raise ChoiceError("fruit", "aple", ["apple", "pear"])
    assert "did you mean" not in str(ChoiceError("fruit", "xyz", ["apple"]))
