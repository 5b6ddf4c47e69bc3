"""Calls of the public functions with malformed models, tensors, graphs, masks, labels and options."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GATv2Conv, GCNConv

import equipoise as eq
from equipoise.data.load import LOADERS
from equipoise.errors import EquipoiseError
from equipoise.nn.stack import CHOICES
from tests.fuzz.layers import Edges, edge_indices
from tests.fuzz.mutations import NUMBERS, TEXTS
from tests.fuzz.runner import Target
from tests.fuzz.tensors import Features, features

NODES, WIDTH, CLASSES = 5, 3, 2


def is_named(error: Exception) -> bool:
    """An error of this package, or one that the model itself raised on its inputs."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_call_impl":
            return True
        trace = trace.tb_next
    return isinstance(error, EquipoiseError)


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result, or None after a named error; any other error is raised."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        if not is_named(error):
            raise
        return None


# --- stacks -----------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 8, 8, 8, 3, 0, -1, 2.0, True, 10**30, float("nan")])
STACK_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "heads": st.sampled_from([1, 2, 2, 0, -1, 1.5]),
        "concat": st.sampled_from([True, False]),
        "out_heads": st.sampled_from([1, 2, 0]),
        "dropout": st.sampled_from([0.0, 0.5, 1.0, -0.1, 2.0, float("nan")]),
        "attention_dropout": st.sampled_from([None, 0.0, 0.5, 7.0]),
        "input_dropout": st.sampled_from([0.0, 0.5, 1.0]),
        "share_weights": st.booleans(),
        "bias": st.booleans(),
        "add_self_loops": st.booleans(),
        "negative_slope": st.sampled_from([0.2, 0.0, -1.0, float("inf")]),
        **{
            name: st.sampled_from([*CHOICES[name], *CHOICES[name], "nonsense"])
            for name in ("activation", "skip", "norm", "jk")
        },
    },
)
FEATURES = features((NODES, WIDTH), (0, WIDTH), (NODES, WIDTH + 1), (2, NODES, WIDTH), (NODES,), ())
# Models of others may crash on invalid sparse tensors, as torch does.
PLAIN_FEATURES = features(
    (NODES, WIDTH), (0, WIDTH), (NODES, WIDTH + 1), (2, NODES, WIDTH), (NODES,), (), invalid=False
)
STACKS = st.tuples(
    st.sampled_from([*CHOICES["kind"], *CHOICES["kind"], "gatv3", None]),
    st.one_of(
        st.tuples(st.just(WIDTH), *[st.sampled_from([8, 8, 3])] * 2).map(list),
        st.lists(SIZES, max_size=4),
    ),
    STACK_OPTIONS,
    FEATURES,
    edge_indices(),
    st.booleans(),
)


def check_stack(value: tuple[Any, Any, dict[str, Any], Features, Edges, bool]) -> None:
    """The same output and gradients as layer by layer with PyG's operations, or both refuse."""
    kind, widths, options, x, edges, training = value
    torch.default_generator.manual_seed(0)
    stack = call(eq.Stack, kind, widths, **options)
    if stack is None:
        return
    stack.train(training)
    outcomes = []
    for engine in ("fused", "reference"):
        os.environ["EQUIPOISE_ENGINE"] = engine
        torch.default_generator.manual_seed(0)
        try:
            out = stack(x.build(), edges.build())
            outcomes.append([out, *torch.autograd.grad(out.sum(), list(stack.parameters()), allow_unused=True)])
        except Exception as error:
            outcomes.append(error)
            if isinstance(error, EquipoiseError):
                break  # refused by name, whatever the other would do
    del os.environ["EQUIPOISE_ENGINE"]
    fused, reference = outcomes[0], outcomes[-1]
    random = training and any(options.get(name) for name in ("dropout", "attention_dropout", "input_dropout"))
    if isinstance(fused, Exception) or isinstance(reference, Exception):
        inference = "Inference tensors" in str(reference)  # which autograd refuses to save, and the kernels do not need
        assert isinstance(fused, Exception) or inference or any_out_of_range(edges), f"{reference!r}, but fused returns"
        assert isinstance(reference, Exception), f"fused raises {fused!r}"
        return
    if random or x.values in {"nan", "inf", "huge"}:
        assert fused[0].shape == reference[0].shape
        return
    for mine, theirs in zip(fused, reference, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3, equal_nan=True)


def any_out_of_range(edges: Edges) -> bool:
    """Whether an index is that of no node."""
    return any(index not in range(NODES) for row in edges.rows for index in row)


# --- models -----------------------------------------------------------------------------------------------------------


class Function(nn.Module):
    """A small network with a last step of any kind."""

    def __init__(self, last: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES), last

    def forward(self, x: Any, edge_index: Any = None) -> Any:  # noqa: ARG002
        return self.last(self.second(self.first(x).relu()))


class Convolutions(nn.Module):
    """Two graph layers of PyG."""

    def __init__(self, cls: Any) -> None:
        super().__init__()
        self.first, self.second = cls(WIDTH, 4), cls(4, CLASSES)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def changed(change: Callable[[nn.Module], Any]) -> Callable[[], nn.Module]:
    """A small network after a change."""

    def build() -> nn.Module:
        model = Function(lambda out: out)
        with torch.no_grad():
            change(model)
        return model

    return build


def fail(out: Any) -> Any:
    raise OSError("out of paper")


def recurse(out: Any) -> Any:
    return recurse(out)


class Uncopyable(nn.Module):
    """Holds a lock, which cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.lock = nn.Linear(WIDTH, CLASSES), threading.Lock()

    def forward(self, x: Any, edge_index: Any = None) -> Any:  # noqa: ARG002
        return self.lin(x)


MODELS: dict[str, Callable[[], Any]] = {
    "stack": lambda: eq.Stack("gatv2", [WIDTH, 8, CLASSES]),
    "gcn": lambda: Convolutions(GCNConv),
    "gat": lambda: Convolutions(GATv2Conv),
    "pyg": lambda: GAT(WIDTH, 4, num_layers=2, out_channels=CLASSES),
    "mlp": lambda: Function(lambda out: out),
    "softmax": lambda: Function(lambda out: out.softmax(-1)),
    "tuple": lambda: Function(lambda out: (out, out)),
    "none": lambda: Function(lambda out: None),
    "classes": lambda: Function(lambda out: out.argmax(-1)),
    "detached": lambda: Function(lambda out: out.detach()),
    "scalar": lambda: Function(lambda out: out.sum()),
    "complex": lambda: Function(lambda out: out.to(torch.complex64)),
    "nan output": lambda: Function(lambda out: out / 0),
    "random": lambda: Function(lambda out: out + torch.rand_like(out)),
    "raises": lambda: Function(fail),
    "recursive": lambda: Function(recurse),
    "zeros": changed(lambda model: [p.zero_() for p in model.parameters()]),
    "nan": changed(lambda model: model.first.weight.fill_(float("nan"))),
    "inf": changed(lambda model: model.second.weight.fill_(float("inf"))),
    "huge": changed(lambda model: [p.mul_(1e30) for p in model.parameters()]),
    "tiny": changed(lambda model: [p.mul_(1e-30) for p in model.parameters()]),
    "half": changed(lambda model: model.half()),
    "frozen": changed(lambda model: model.requires_grad_(False)),
    "partly frozen": changed(lambda model: model.first.requires_grad_(False)),
    "meta": changed(lambda model: model.to("meta")),
    "tied": changed(lambda model: setattr(model.second, "bias", nn.Parameter(model.first.bias[:CLASSES]))),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(CLASSES)),
    "empty": nn.Sequential,
    "no neurons": lambda: nn.Sequential(nn.Linear(WIDTH, 0), nn.ReLU(), nn.Linear(0, CLASSES)),
    "identity": nn.Identity,
    "uncopyable": Uncopyable,
    "batch norm": lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES)),
    "no module": lambda: "model",
    "nothing": lambda: None,
    "function": lambda: torch.relu,
}
USUAL = ["stack", "gcn", "gat", "pyg", "mlp"]
MODEL_NAMES = st.sampled_from(USUAL * 4 + sorted(MODELS))
CALLS = st.tuples(MODEL_NAMES, PLAIN_FEATURES, edge_indices())


def build_model(name: str) -> Any:
    """A new model, the same at every call."""
    torch.default_generator.manual_seed(0)
    return MODELS[name]()


def snapshot(model: Any) -> dict[str, Any]:
    """Copies of the parameters and buffers of a module."""
    if not isinstance(model, nn.Module):
        return {}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: value.detach().clone()
        for name, value in tensors.items()
        if type(value).__name__ != "UninitializedParameter"
    }


def assert_unchanged(model: Any, before: dict[str, Any]) -> None:
    """Parameters are as they were."""
    for name, value in snapshot(model).items():
        if name in before and value.device.type != "meta":
            torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)


def inputs_of(model: Any, x: Features, edges: Edges) -> tuple[Any, ...]:
    """Arguments of the model."""
    return (x.build(),) if isinstance(model, nn.Sequential) else (x.build(), edges.build())


def check_discover(value: tuple[str, Features, Edges]) -> None:
    """Laws that hold, or a named error; the model is as it was."""
    name, x, edges = value
    model = build_model(name)
    before = snapshot(model)
    laws = call(eq.discover, model, *inputs_of(model, x, edges))
    assert_unchanged(model, before)
    for law in laws or ():
        assert torch.isfinite(torch.as_tensor(law.neurons, dtype=torch.float64))
        assert str(law)


def check_rebalance(value: tuple[tuple[str, Features, Edges], Any, Any]) -> None:
    """The same outputs with balanced laws, or a named error and nothing changed."""
    (name, x, edges), criterion, optimizer_name = value
    model = build_model(name)
    arguments = inputs_of(model, x, edges)
    laws = call(eq.discover, model, *arguments) or []
    before = snapshot(model)
    optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "lbfgs": torch.optim.LBFGS}
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    optimizer = (
        optimizers[optimizer_name](parameters, lr=0.1)
        if optimizer_name in optimizers and parameters
        else optimizer_name
    )
    remaining = call(eq.rebalance_, laws, optimizer, criterion)
    if remaining is None:
        assert_unchanged(model, before)
    elif laws:
        assert remaining >= 0
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
        assert finite or not all(bool(torch.isfinite(copy).all()) for copy in before.values())


SCHEMES = st.sampled_from(["bal-o", "xav", "bal-x", "identity", "llortho", "rebalanced", "default", "nonsense"])
BETAS = st.sampled_from([None, None, 1.0, 0.0, -1.0, float("nan"), float("inf"), 1e300])


def check_initialize(value: tuple[str, Any, Any, Any, tuple[Features, Edges] | None]) -> None:
    """Finite parameters, the same objects as before; or a named error and nothing changed."""
    name, scheme, beta, direction, given = value
    model = build_model(name)
    before, objects = snapshot(model), dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    options = {} if given is None else {"inputs": inputs_of(model, *given)}
    result = call(eq.initialize_, model, scheme, beta=beta, direction=direction, **options)
    if result is None:
        assert_unchanged(model, before)
        return
    assert result is model
    for parameter_name, parameter in model.named_parameters():
        assert parameter is objects[parameter_name]
        if name in USUAL:
            assert bool(torch.isfinite(parameter).all()), parameter_name


# --- training ---------------------------------------------------------------------------------------------------------

LABELS: dict[str, Callable[[], Any]] = {
    "classes": lambda: torch.tensor([0, 1, 0, 1, 0]),
    "too large": lambda: torch.tensor([0, 1, 7, 1, 0]),
    "negative": lambda: torch.tensor([0, 1, -100, 1, 0]),
    "huge": lambda: torch.full((5,), 2**62),
    "floats": lambda: torch.rand(5),
    "nan": lambda: torch.full((5,), float("nan")),
    "column": lambda: torch.tensor([[0], [1], [0], [1], [0]]),
    "one hot": lambda: torch.eye(2)[[0, 1, 0, 1, 0]],
    "short": lambda: torch.tensor([0, 1]),
    "empty": lambda: torch.empty(0, dtype=torch.long),
    "bool": lambda: torch.tensor([True, False, True, False, True]),
    "uint8": lambda: torch.tensor([0, 1, 0, 1, 0], dtype=torch.uint8),
    "list": lambda: [0, 1, 0, 1, 0],
    "none": lambda: None,
    "meta": lambda: torch.zeros(5, dtype=torch.long, device="meta"),
}
MASKS: dict[str, Callable[[], Any]] = {
    "some": lambda: torch.tensor([True, True, True, False, False]),
    "all": lambda: torch.ones(5, dtype=torch.bool),
    "no node": lambda: torch.zeros(5, dtype=torch.bool),
    "short": lambda: torch.ones(2, dtype=torch.bool),
    "long": lambda: torch.ones(9, dtype=torch.bool),
    "indices": lambda: torch.tensor([0, 2]),
    "bad indices": lambda: torch.tensor([0, 99]),
    "floats": lambda: torch.ones(5),
    "ten splits": lambda: torch.ones(5, 10, dtype=torch.bool),
    "list": lambda: [True] * 5,
    "none": lambda: None,
}
TRAIN_OPTIONS = st.fixed_dictionaries(
    {"epochs": st.sampled_from([1, 2, 2, 3, 0, -1])},
    optional={
        "lr": st.sampled_from([0.1, 0.1, 0.0, -1.0, 1e30, float("nan"), float("inf"), None]),
        "optimizer": st.sampled_from(["sgd", "adam", "adamw", "nonsense"]),
        "metric": st.sampled_from(["accuracy", "nonsense"]),
        "weight_decay": st.sampled_from([0.0, 1.0, -1.0, 1e300, float("nan")]),
        "clip": st.sampled_from([None, 1.0, 0.0, -1.0, float("nan")]),
        "patience": st.sampled_from([None, 1, 0, -1]),
        "stop_loss": st.sampled_from([1e-4, -1.0, float("nan")]),
        "sparse_features": st.sampled_from([None, True, False]),
    },
)
MASK_NAMES = st.sampled_from(["some"] * 8 + sorted(MASKS))
DATA = st.tuples(
    PLAIN_FEATURES,
    edge_indices(),
    st.sampled_from(["classes"] * 8 + sorted(LABELS)),
    MASK_NAMES,
    MASK_NAMES,
    st.integers(0, 9),
)


def build_data(value: tuple[Features, Edges, str, str, str, int]) -> Any:
    """A data set, or something else."""
    x, edges, labels, train, other, form = value
    if form == 0:
        return None
    data = Data(x=x.build(), edge_index=edges.build(), y=LABELS[labels]())
    data.train_mask, data.val_mask, data.test_mask = MASKS[train](), MASKS[other](), MASKS[other]()
    if form == 1:
        return {"train": [data], "val": [data], "test": [data]}
    if form == 2:
        return {"train": []}
    return data


def check_train(value: tuple[str, Any, dict[str, Any], bool]) -> None:
    """A history with one loss per epoch, or a named error."""
    name, given, options, record = value
    model, data = build_model(name), build_data(given)
    recorder = call(eq.Recorder, model, every=1) if record else None
    history = call(eq.train, model, data, record=recorder, **({"lr": 0.1} | options))
    if history is None:
        return
    assert len(history.loss) == history.epochs <= options["epochs"]
    assert (
        all(0 <= accuracy <= 1 for accuracy in history.val_accuracy) or options.get("metric", "accuracy") != "accuracy"
    )
    assert history.outcome in {"finished", "converged", "stopped", "diverged"}
    if recorder is not None:
        recorder.frame()


RECORDERS = st.tuples(
    MODEL_NAMES,
    st.fixed_dictionaries(
        {},
        optional={
            "every": st.sampled_from([1, 25, 0, -1]),
            "most": st.sampled_from([None, 1, 0, -5]),
            "quantities": st.sampled_from([("gradient",), (), ("nonsense",), ("balance", "change")]),
            "laws": st.sampled_from([(), ["law"]]),
        },
    ),
    st.lists(st.integers(-2, 60), max_size=3),
    PLAIN_FEATURES,
    edge_indices(),
)


def check_recorder(value: tuple[str, dict[str, Any], list[Any], Features, Edges]) -> None:
    """A frame, whatever was recorded, or a named error."""
    name, options, epochs, x, edges = value
    model = build_model(name)
    recorder = call(eq.Recorder, model, **options)
    if recorder is None:
        return
    for epoch in epochs:
        try:
            out = model(*inputs_of(model, x, edges))
            out.sum().backward()
        except Exception:
            return  # the model's own
        if call(recorder.step, epoch, loss=1.0) is None:
            break
    recorder.close()
    assert not recorder.frame().isna().all(axis=None) or recorder.frame().empty


# --- depth check, data sets -------------------------------------------------------------------------------------------

CHECKS = st.tuples(
    MODEL_NAMES,
    DATA,
    st.fixed_dictionaries(
        {
            "depths": st.sampled_from([(2,), (2,), (1, 2), (), (0,), (-1,), (2, 2)]),
            "steps": st.sampled_from([1, 2, 0, -1]),
        },
        optional={
            "schemes": st.sampled_from([("default",), ("bal-o",), ("nonsense",), (), ("skip",), ("layer-norm",)]),
            "lr": st.sampled_from([None, 0.1, -1.0, float("nan")]),
            "epochs": st.sampled_from([10, 0, -1]),
            "seconds": st.sampled_from([1.0, 0.0, -1.0, float("nan")]),
            "seed": st.sampled_from([0, 1, -1, 2**40]),
        },
    ),
)  # fmt: skip


def check_depth(value: tuple[str, Any, dict[str, Any]]) -> None:
    """A result with one row per depth and scheme, or a named error."""
    name, given, options = value
    result = call(eq.depth_check, lambda depth: build_model(name), build_data(given), **options)
    if result is not None:
        result.summary(), result.frame(), str(result.verdict())


DATASETS = st.tuples(
    st.one_of(st.sampled_from([*LOADERS, "Texas", "cornel"]), TEXTS),
    st.sampled_from([None, None, "empty", "missing", "a" * 5000]),
    st.fixed_dictionaries(
        {},
        optional={
            "split": NUMBERS,
            "undirected": st.sampled_from([True, False]),
            "keep_isolated": st.booleans(),
            "seed": st.integers(-3, 2**70),
        },
    ),
)
SMALL = ("texas", "cornell", "wisconsin", "synthetic-citation")


def check_dataset(value: tuple[Any, Any, dict[str, Any]]) -> None:
    """A graph whose tensors fit together, or a named error."""
    name, root, options = value
    if root is None and isinstance(name, str) and name.lower() in LOADERS and name.lower() not in SMALL:
        name = "texas"  # the others take too long
    os.makedirs("empty", exist_ok=True)
    data = call(eq.load_dataset, name, root, **options)
    if data is not None:
        data.validate()
        assert len(data.x) == len(data.y) == len(data.train_mask)


INTERFACE = (
    Target("Stack", STACKS, check_stack, count=12_000),
    Target("discover", CALLS, check_discover, count=1_000, batch=50),
    Target(
        "rebalance_",
        st.tuples(CALLS, st.sampled_from(["weights"] * 3 + ["gradients", "relative-gradients", "nonsense"]),
                  st.sampled_from([None, None, "sgd", "adam", "lbfgs"])),
        check_rebalance, count=1_000, batch=50,
    ),
    Target(
        "initialize_",
        st.tuples(MODEL_NAMES, SCHEMES, BETAS, st.sampled_from(["forward", "forward", "backward", "up"]),
                  st.one_of(st.none(), st.tuples(PLAIN_FEATURES, edge_indices()))),
        check_initialize, count=2_000, batch=100,
    ),
    Target("train", st.tuples(MODEL_NAMES, DATA, TRAIN_OPTIONS, st.booleans()), check_train, count=4_000, batch=100),
    Target("Recorder", RECORDERS, check_recorder, count=3_000, batch=100),
    Target("depth_check", CHECKS, check_depth, count=400, batch=50),
    Target("load_dataset", DATASETS, check_dataset, count=2_000, batch=100),
)  # fmt: skip
