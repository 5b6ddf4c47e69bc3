"""The catalogue of data sets: sizes, download addresses and SHA-256 checksums of all files.

>>> dataset_info("Cora").nodes
2708
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from equipoise.errors import ChoiceError

PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
HETEROPHILOUS_URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"

PLANETOID_SHA256 = {
    "Cora": {
        "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
    "CiteSeer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
    "PubMed": {
        "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
}

HETEROPHILOUS_SHA256 = {
    "chameleon": "4c640bd2877fc4f9f101531e2f977bc16445a54e09a5cb01178df608e552f3fd",
    "squirrel": "d436e3b42c0546b105241c0ab0766097074e68e55f67b133eeb9b0162e55cbd9",
    "actor": "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
    "cornell": "684c54ba3daa13b0ba1f04a3d6dd1b1175c1ae9bdeb982851fd4ff96d3aac298",
    "texas": "b164b99e6c3d43e4ab07488ec59bd8c815f90cbc1bd4cf425ce587d2b534d844",
    "wisconsin": "2543c89838cfc75f737f7c4664cc1d097f8268602c20b2d1bd4f21407df9c074",
    "minesweeper": "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3",
    "tolokers": "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
    "chameleon_filtered": "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",
    "squirrel_filtered": "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",
}

Metric = Literal["accuracy", "roc_auc"]
METRIC_TITLES: dict[Metric, str] = {"accuracy": "accuracy", "roc_auc": "ROC AUC"}


@dataclass(frozen=True)
class RawFile:
    """A file as published by the authors of a data set.

    Attributes:
        path: path relative to a data folder, with forward slashes.
        sha256: checksum, verified before the file is parsed.
        url: download address.
    """

    path: str
    sha256: str
    url: str

    @property
    def name(self) -> str:
        """File name without folders."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class DatasetInfo:
    """Sizes and files of a data set, as loaded with default options.

    Attributes:
        name: identifier, in lower case.
        title: name for display.
        nodes: number of nodes.
        edges: number of directed edges, as used for training.
        features: number of features per node.
        classes: number of classes.
        split: numbers of training, validation and test nodes.
        majority: number of test nodes in their largest class.
        files: raw files; empty for the synthetic data set.
        metric: measure of a prediction that its publication uses: ``"roc_auc"`` for two classes of unequal size,
            ``"accuracy"`` otherwise.
    """

    name: str
    title: str
    nodes: int
    edges: int
    features: int
    classes: int
    split: tuple[int, int, int]
    majority: int
    files: tuple[RawFile, ...] = ()
    metric: Metric = "accuracy"

    @property
    def constant_score(self) -> float:
        """Highest score of a constant prediction, in percent: the share of the largest class; 50 for ROC AUC."""
        return 50.0 if self.metric == "roc_auc" else 100 * self.majority / self.split[2]


def _planetoid(folder: str) -> tuple[RawFile, ...]:
    return tuple(
        RawFile(f"Planetoid/{folder}/raw/{name}", sha256, f"{PLANETOID_URL}/{name}")
        for part, sha256 in PLANETOID_SHA256[folder].items()
        for name in [f"ind.{folder.lower()}.{part}"]
    )


def _heterophilous(name: str) -> tuple[RawFile, ...]:
    file = f"{name}.npz"
    return (RawFile(f"heterophilous/{file}", HETEROPHILOUS_SHA256[name], f"{HETEROPHILOUS_URL}/{file}"),)


_DATASETS = (
    DatasetInfo("cora", "Cora", 2708, 10556, 1433, 7, (140, 500, 1000), 319, _planetoid("Cora")),
    DatasetInfo("citeseer", "Citeseer", 3327, 9104, 3703, 6, (120, 494, 988), 224, _planetoid("CiteSeer")),
    DatasetInfo("pubmed", "Pubmed", 19717, 88648, 500, 3, (60, 500, 1000), 413, _planetoid("PubMed")),
    DatasetInfo("chameleon", "Chameleon", 2277, 31371, 2325, 5, (1092, 729, 456), 104, _heterophilous("chameleon")),
    DatasetInfo("squirrel", "Squirrel", 5201, 198353, 2089, 5, (2496, 1664, 1041), 222, _heterophilous("squirrel")),
    DatasetInfo("actor", "Actor", 7600, 26659, 932, 5, (3648, 2432, 1520), 377, _heterophilous("actor")),
    DatasetInfo("cornell", "Cornell", 183, 277, 1703, 5, (87, 59, 37), 16, _heterophilous("cornell")),
    DatasetInfo("texas", "Texas", 183, 279, 1703, 5, (87, 59, 37), 22, _heterophilous("texas")),
    DatasetInfo("wisconsin", "Wisconsin", 251, 450, 1703, 5, (120, 80, 51), 32, _heterophilous("wisconsin")),
    DatasetInfo(
        *("minesweeper", "Minesweeper", 10000, 78804, 7, 2, (5000, 2500, 2500), 2000),
        files=_heterophilous("minesweeper"),
        metric="roc_auc",
    ),
    DatasetInfo(
        *("tolokers", "Tolokers", 11758, 1038000, 10, 2, (5879, 2939, 2940), 2298),
        files=_heterophilous("tolokers"),
        metric="roc_auc",
    ),
    DatasetInfo(
        *("chameleon-filtered", "Chameleon, filtered", 890, 17708, 2325, 5, (427, 302, 161), 42),
        files=_heterophilous("chameleon_filtered"),
    ),
    DatasetInfo(
        *("squirrel-filtered", "Squirrel, filtered", 2223, 93996, 2089, 5, (1080, 700, 443), 159),
        files=_heterophilous("squirrel_filtered"),
    ),
    DatasetInfo("synthetic-citation", "Synthetic citation", 1750, 6948, 500, 7, (140, 500, 1000), 155),
)

CATALOG = {info.name: info for info in _DATASETS}


def dataset_info(name: str) -> DatasetInfo:
    """Look up a data set by name, ignoring case.

    Args:
        name: name of the data set.

    Returns:
        Its entry in the catalogue.

    Raises:
        ChoiceError: If the name is unknown; lists all names and suggests the nearest.
    """
    try:
        return CATALOG[str(name).lower()]
    except KeyError:
        raise ChoiceError("data set", name, CATALOG) from None
