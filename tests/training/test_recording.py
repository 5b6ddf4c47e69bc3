import io
import random

import numpy as np
import pandas as pd
import pytest

from equipoise.errors import EquipoiseError, TrainingError
from equipoise.training.recording import Record, Recording, chart_values, scalar_record


@pytest.fixture
def recording():
    recording = Recording(("convs.0", "convs.1"))
    recording.add(2, [Record("balance/c", 1, np.array([1.0, -3.0])), Record("gradient/features", 2, np.array(np.inf))])
    recording.add(1, [Record("train/loss", 0, np.array(1.9)), Record("balance/c", 2, np.array([]))])
    return recording


def test_frame_is_tidy_and_sorted_by_epoch(recording):
    frame = recording.frame()
    assert frame.columns.tolist() == ["epoch", "quantity", "layer", "neuron", "value"]
    assert frame.epoch.tolist() == [1, 2, 2, 2]
    assert frame.value.tolist() == [1.9, 1.0, -3.0, np.inf]
    assert frame.neuron.tolist() == [pd.NA, 0, 1, pd.NA]
    assert frame.layer.tolist() == [pd.NA, 1, 1, 2]


def test_empty_recording(tmp_path):
    assert Recording().frame().empty
    assert Recording.load(Recording().save(tmp_path / "empty.npz")).frame().empty


def test_save_and_load(recording, tmp_path):
    path = recording.save(tmp_path / "name without a suffix")
    assert path.is_file()
    loaded = Recording.load(path)
    assert loaded.layers == recording.layers
    assert loaded.nbytes == recording.nbytes
    pd.testing.assert_frame_equal(loaded.frame(), recording.frame())


def test_thinning_keeps_the_first_epoch_and_updates_nbytes(recording):
    for epoch in (3, 4, 6, 8):
        recording.add(epoch, [Record("update/size", 1, np.array(0.1))])
    before = recording.nbytes
    recording.thin(4)
    assert sorted(recording.epochs) == [1, 4, 8]
    rebuilt = Recording()
    for epoch, records in recording.epochs.items():
        rebuilt.add(epoch, records)
    assert recording.nbytes == rebuilt.nbytes < before


@pytest.mark.parametrize("content", [b"", b"some text", b"PK\x03\x04 broken"])
def test_other_files_are_rejected(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(EquipoiseError, match=r"the recording cannot be read(.|\n)*x.npz(.|\n)*rec.save"):
        Recording.load(tmp_path / "x.npz")
    with pytest.raises(EquipoiseError, match="the recording cannot be read"):
        Recording.load(tmp_path / "missing.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(EquipoiseError, match="the recording cannot be read"):
        Recording.load(tmp_path / "other.npz")


def test_pickles_are_rejected(tmp_path):
    np.savez(tmp_path / "p.npz", format=np.array([{"a": 1}], dtype=object))
    with pytest.raises(EquipoiseError, match="the recording cannot be read"):
        Recording.load(tmp_path / "p.npz")


def test_missing_folder(recording, tmp_path):
    with pytest.raises(EquipoiseError, match="cannot be written"):
        recording.save(tmp_path / "no" / "such.npz")


def test_chart_values_are_per_layer():
    tags = dict(chart_values([Record("balance/c", 3, np.array([1.0, -3.0])), Record("update/size", 12, np.array(0.5))]))
    assert tags == {"balance/layer03/c_max": 3.0, "balance/layer03/c_mean": 2.0, "update/layer12/size": 0.5}


def test_flipped_bytes_and_truncation_are_noticed(tmp_path):
    """Every change of the file gives the same recording or a named error."""
    recording = Recording(("a", "b"))
    for epoch in range(1, 9):
        recording.add(
            epoch, [Record("balance/c", 1, np.arange(5.0) * epoch), scalar_record("train/loss", 0, 1 / epoch)]
        )
    content, places, refused = recording.to_bytes(), random.Random(0), 0
    path = tmp_path / "damaged.npz"
    for case in range(200):
        damaged = bytearray(content)
        if case < 20:
            del damaged[places.randrange(len(content)) :]
        else:
            damaged[places.randrange(len(content))] ^= places.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            loaded = Recording.load(path)
        except TrainingError:
            refused += 1
        else:
            pd.testing.assert_frame_equal(loaded.frame(), recording.frame())
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("values", np.array(3.0)),
        ("values", np.arange(2.0)),
        ("epoch", np.array([b"a", b"b", b"c", b"d"])),
        ("neurons", np.full(4, 2**62)),
        ("layers", np.array(7)),
    ],
)
def test_arrays_of_another_kind_are_rejected(recording, name, array):
    with np.load(io.BytesIO(recording.to_bytes())) as file:
        columns = dict(file) | {name: array}
    content = io.BytesIO()
    np.savez(content, **columns)
    content.seek(0)
    with pytest.raises(EquipoiseError, match="the recording cannot be read"):
        Recording.load(content)
