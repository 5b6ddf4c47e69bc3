"""Command lines of all commands that finish in a moment: exit code 0, 1 or 2, and never a traceback."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from hypothesis import strategies as st
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.errors import EquipoiseError
from tests.fuzz.mutations import TEXTS
from tests.fuzz.runner import Target

NAMES = st.sampled_from(["sgd", "adam", "inits", "datasets", "nonsense", "missing.toml", "folder", "../x.toml"])
FILES = st.sampled_from(["none.sqlite", "folder", "empty.sqlite", "text.csv", "deep/none.csv", "a" * 300])
WORDS = st.one_of(TEXTS.filter(lambda text: "\x00" not in text), st.integers(-3, 2**40).map(str))
OPTIONS = st.one_of(
    st.tuples(st.sampled_from(["--store", "--out"]), FILES),
    st.tuples(st.sampled_from(["--dataset", "--init", "--depth", "--format", "--epochs"]), WORDS),
    st.tuples(st.sampled_from(["--json", "--help", "--nonsense", "--version"])),
).map(list)
COMMANDS = st.one_of(
    st.tuples(st.sampled_from(["status", "report"]), NAMES).map(list),
    st.tuples(st.just("reproduce"), st.just("--dry-run"), NAMES, st.just("--seeds"), st.sampled_from("01x-")).map(list),
    st.tuples(st.just("store"), st.sampled_from(["export", "import", "check", "nonsense"]), FILES).map(list),
    st.tuples(st.just("data"), st.sampled_from(["list", "verify", "nonsense"])).map(list),
    st.tuples(
        st.sampled_from(["discover", "inspect"]), st.sampled_from(["x.py:f", "os:getcwd", "os:nonsense", "no"])
    ).map(list),
    st.lists(WORDS, max_size=3),
)
LINES = st.tuples(COMMANDS, st.lists(OPTIONS, max_size=2)).map(lambda line: [*line[0], *chain.from_iterable(line[1])])
SLOW = {"demo", "bench", "train"}  # other names of commands, drawn by chance


def check_line(arguments: list[str]) -> None:
    """An exit code of 0, 1 or 2, or an error that ``main`` prints in words; no store is created or changed."""
    Path("folder").mkdir(exist_ok=True)
    Path("empty.sqlite").touch()
    Path("text.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    if SLOW & set(arguments) or ("verify" in arguments):
        return
    result = CliRunner().invoke(app, arguments)
    error = result.exception
    assert error is None or isinstance(error, (SystemExit, EquipoiseError, OSError)), repr(error)
    assert isinstance(error, (EquipoiseError, OSError)) or result.exit_code in {0, 1, 2}
    assert not Path("empty.sqlite").stat().st_size or "import" in arguments


COMMAND_LINES = Target("command lines", LINES, check_line, count=1_000, batch=50)
