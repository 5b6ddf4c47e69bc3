"""Commands that read a store in a folder without write permission."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from equipoise.experiments.result import Result
from equipoise.experiments.store import Store
from tests.experiments.workloads import SPECS

AS_OWNER_ONLY = ["setpriv", "--bounding-set", "-dac_override"]  # permissions then apply to root, too

pytestmark = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root needs setpriv to be refused a write"
)


@pytest.fixture
def folder(tmp_path):
    """A read-only folder with a store of one run."""
    folder = tmp_path / "read only?"  # the name has a meaning in the address of a database
    folder.mkdir()
    with Store(folder / "runs.sqlite") as store:
        store.put(Result(spec=SPECS[0], outcome="finished", test_accuracy=0.5, best_epoch=3, epochs=6))
    (folder / "runs.sqlite").chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def run(*arguments, cwd):
    command = [*(AS_OWNER_ONLY if os.geteuid() == 0 else []), sys.executable, "-m", "equipoise", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_status_and_export_read_it(folder, tmp_path):
    store = folder / "runs.sqlite"
    status = run("status", "sgd", "--json", "--store", store, cwd=tmp_path)
    assert json.loads(status.stdout)["experiments"][0]["experiment"] == "sgd", status.stderr
    assert run("status", "sgd", "--store", store, cwd=tmp_path).stderr.endswith(": 1 runs\n")
    export = run("store", "export", "copy.csv", "--store", store, cwd=tmp_path)
    assert export.stdout == "1 runs in copy.csv\n", export.stderr
    merged = run("store", "import", store, "--store", "copy.sqlite", cwd=tmp_path)
    assert merged.stdout == "1 runs added, 0 already there\n", merged.stderr
    assert [file.name for file in folder.iterdir()] == ["runs.sqlite"]


def test_report_reads_it_and_writes_elsewhere(folder, tmp_path):
    (tmp_path / "own.toml").write_text(
        '[grid]\ndataset = "synthetic-citation"\ndepth = [2, 3]\nlr = 0.1\nwidth = 8\nepochs = 6\n'
    )
    arguments = ("report", "own.toml", "--store", folder / "runs.sqlite")
    table = run(*arguments, cwd=tmp_path)
    assert "1 of 2 runs" in table.stdout, table.stderr
    page = run(*arguments, "--html", "page.html", cwd=tmp_path)
    assert page.stdout == "page.html\n", page.stderr


def test_a_sweep_is_refused_in_words(folder, tmp_path):
    merged = run("store", "import", folder / "runs.sqlite", "--store", folder / "new.sqlite", cwd=tmp_path)
    assert merged.returncode == 2
    assert "the store cannot be opened" in merged.stderr
    assert "Traceback" not in merged.stderr
