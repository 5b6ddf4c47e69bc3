import pytest
from matplotlib.figure import Figure

from equipoise.errors import EquipoiseError
from equipoise.init.schemes import SCHEMES
from equipoise.report.plots.style import (
    OTHER_STYLE,
    SCHEME_STYLES,
    add_caption,
    layer_colour,
    line_style,
    save_figure,
)


@pytest.fixture
def figure():
    figure = Figure(figsize=(4, 3))
    figure.subplots()
    return figure


def test_every_scheme_has_a_style_and_a_title():
    assert set(SCHEMES) == set(SCHEME_STYLES) - {"default"}
    own = {scheme: style for scheme, style in SCHEME_STYLES.items() if scheme != "default"}
    assert len({style.colour for style in own.values()}) == len(own)
    assert line_style("unknown")["color"] == OTHER_STYLE.colour


def test_last_layer_is_visible_on_white():
    """The contrast of graphics is at least 3 to 1, by the definition of the Web Content Accessibility Guidelines."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in layer_colour([1, 5], 5)
    ]
    luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear[:3], strict=True))
    assert 1.05 / (luminance + 0.05) >= 2.995


def test_caption_is_wrapped_to_the_width_of_the_figure(figure):
    add_caption(figure, "word " * 30, {"lr": 0.05, "width": 64})
    lines = figure.get_supxlabel().splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1] == "lr 0.05, width 64"


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_suffix_selects_the_format(figure, tmp_path, suffix, magic):
    assert save_figure(figure, tmp_path / "new" / f"c.{suffix}").read_bytes().startswith(magic)


def test_unwritable_figure_is_an_error(figure, tmp_path):
    with pytest.raises(EquipoiseError, match=r"cannot be written(.|\n)*ends in .png"):
        save_figure(figure, tmp_path / "c.nonsense")
    (tmp_path / "file").write_text("")
    with pytest.raises(EquipoiseError, match="cannot be written"):
        save_figure(figure, tmp_path / "file" / "c.png")
