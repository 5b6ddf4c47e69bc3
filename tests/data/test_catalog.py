from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data.catalog import CATALOG, dataset_info
from equipoise.errors import ChoiceError

# nodes, edges as used, features, classes, train/val/test
PUBLISHED = {
    "cora": (2708, 10556, 1433, 7, (140, 500, 1000)),
    "citeseer": (3327, 9104, 3703, 6, (120, 494, 988)),
    "pubmed": (19717, 88648, 500, 3, (60, 500, 1000)),
    "chameleon": (2277, 31371, 2325, 5, (1092, 729, 456)),
    "squirrel": (5201, 198353, 2089, 5, (2496, 1664, 1041)),
    "actor": (7600, 26659, 932, 5, (3648, 2432, 1520)),
    "cornell": (183, 277, 1703, 5, (87, 59, 37)),
    "texas": (183, 279, 1703, 5, (87, 59, 37)),
    "wisconsin": (251, 450, 1703, 5, (120, 80, 51)),
    "minesweeper": (10000, 78804, 7, 2, (5000, 2500, 2500)),
    "tolokers": (11758, 1038000, 10, 2, (5879, 2939, 2940)),
    "chameleon-filtered": (890, 17708, 2325, 5, (427, 302, 161)),
    "squirrel-filtered": (2223, 93996, 2089, 5, (1080, 700, 443)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_equal_the_published_ones(name: str) -> None:
    info = CATALOG[name]
    assert (info.nodes, info.edges, info.features, info.classes, info.split) == PUBLISHED[name]


def test_catalogue_lists_the_real_and_the_synthetic_data_sets() -> None:
    assert list(CATALOG) == [*PUBLISHED, "synthetic-citation"]


def test_every_file_has_a_checksum_and_a_url() -> None:
    files = [file for info in CATALOG.values() for file in info.files]
    assert len(files) == len({file.path for file in files}) == len({file.sha256 for file in files}) == 34
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.url.startswith("https://github.com/")
        assert file.url.endswith(f"/{file.name}")


def test_metric_is_roc_auc_for_two_classes() -> None:
    assert {info.name for info in CATALOG.values() if info.metric == "roc_auc"} == {"minesweeper", "tolokers"}
    assert all(info.metric == ("roc_auc" if info.classes == 2 else "accuracy") for info in CATALOG.values())


def test_constant_prediction_scores_the_share_of_the_largest_class_or_half_the_area() -> None:
    assert CATALOG["cora"].constant_score == pytest.approx(31.9)
    assert CATALOG["texas"].constant_score == pytest.approx(100 * 22 / 37)
    assert CATALOG["minesweeper"].constant_score == 50


@given(st.sampled_from(sorted(CATALOG)), st.randoms(use_true_random=False))
def test_lookup_ignores_case(name: str, random: Random) -> None:
    mixed = "".join(random.choice([letter.upper(), letter]) for letter in name)
    assert dataset_info(mixed).name == name


def test_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(ChoiceError, match="did you mean 'citeseer'") as caught:
        dataset_info("citseer")
    assert "unknown data set 'citseer'" in str(caught.value)
    assert all(name in str(caught.value) for name in CATALOG)
