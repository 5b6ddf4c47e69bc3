import numpy as np
import pandas as pd
import pytest

from equipoise.errors import EquipoiseError
from equipoise.train.recording import Entry, Recording, aggregated


@pytest.fixture
def recording():
    recording = Recording(("convs.0", "convs.1"))
    recording.add(2, [Entry("balance/c", 1, np.array([1.0, -3.0])), Entry("gradient/features", 2, np.array(np.inf))])
    recording.add(1, [Entry("train/loss", 0, np.array(1.9)), Entry("balance/c", 2, np.array([]))])
    return recording


def test_frame_is_tidy_and_in_order(recording):
    frame = recording.frame()
    assert frame.columns.tolist() == ["epoch", "quantity", "layer", "neuron", "value"]
    assert frame.epoch.tolist() == [1, 2, 2, 2]
    assert frame.value.tolist() == [1.9, 1.0, -3.0, np.inf]
    assert frame.neuron.tolist() == [pd.NA, 0, 1, pd.NA]
    assert frame.layer.tolist() == [pd.NA, 1, 1, 2]


def test_an_empty_one_has_an_empty_frame(tmp_path):
    assert Recording().frame().empty
    assert Recording.load(Recording().save(tmp_path / "empty.npz")).frame().empty


def test_one_file_there_and_back(recording, tmp_path):
    path = recording.save(tmp_path / "a name without an ending")
    assert path.is_file()
    loaded = Recording.load(path)
    assert loaded.layers == recording.layers
    assert loaded.nbytes == recording.nbytes
    pd.testing.assert_frame_equal(loaded.frame(), recording.frame())


def test_thinning_keeps_the_first_and_counts_again(recording):
    for epoch in (3, 4, 6, 8):
        recording.add(epoch, [Entry("update/size", 1, np.array(0.1))])
    before = recording.nbytes
    recording.thin(4)
    assert sorted(recording.epochs) == [1, 4, 8]
    fresh = Recording()
    for epoch, entries in recording.epochs.items():
        fresh.add(epoch, entries)
    assert recording.nbytes == fresh.nbytes < before


@pytest.mark.parametrize("content", [b"", b"no recording", b"PK\x03\x04 broken"])
def test_what_is_no_recording_is_named(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(EquipoiseError, match=r"no recording can be read(.|\n)*x.npz(.|\n)*rec.save"):
        Recording.load(tmp_path / "x.npz")
    with pytest.raises(EquipoiseError, match="no recording can be read"):
        Recording.load(tmp_path / "not there.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(EquipoiseError, match="no recording can be read"):
        Recording.load(tmp_path / "other.npz")


def test_pickles_are_not_opened(tmp_path):
    np.savez(tmp_path / "p.npz", format=np.array([{"a": 1}], dtype=object))
    with pytest.raises(EquipoiseError, match="no recording can be read"):
        Recording.load(tmp_path / "p.npz")


def test_a_folder_that_is_not_there(recording, tmp_path):
    with pytest.raises(EquipoiseError, match="cannot be written"):
        recording.save(tmp_path / "no" / "such.npz")


def test_charts_are_of_layers():
    tags = dict(aggregated([Entry("balance/c", 3, np.array([1.0, -3.0])), Entry("update/size", 12, np.array(0.5))]))
    assert tags == {"balance/layer03/c_max": 3.0, "balance/layer03/c_mean": 2.0, "update/layer12/size": 0.5}
