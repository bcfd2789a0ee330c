"""Wrong calls of the library: one line each that names the argument, before anything is changed."""

import copy
import itertools
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.patterns import NM, BlockWise, TileWise
from sparsefront.recovery import Finetune


def net_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


class Scaled(nn.Module):
    """Needs two inputs, one by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net_of()

    def forward(self, x, *, scale):
        return self.body(x) * scale


class Bare(nn.Module):
    """Has a parameter, and no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, input):
        return input * self.scale


X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
Y = X[:, :4].argmax(1)
DATA = [(X, Y)]
PRUNED = net_of()
MASKS = sf.prune(PRUNED, "n_m", 0.5, tell=lambda line: None)
SWAPPED = copy.deepcopy(PRUNED)
sf.swap(SWAPPED, MASKS, (X,))
META = torch.device("meta")
SUMS = nn.CrossEntropyLoss(reduction="none")


SHIFTED = net_of()
SHIFTED.register_buffer("shift", torch.zeros(4, device=META))
EXPORTED = torch.export.export(net_of(), (X,))
# networks that no function takes, and what each says of them
NETWORKS = [
    (net_of().to(META), "Sequential: has weights on the meta device (0.weight), which have no values: load them first"),
    (SHIFTED, "Sequential: has weights on the meta device (shift)"),
    (nn.Sequential(nn.LazyLinear(8)), "Sequential: has weights without a shape (0.weight): call it once on a batch"),
    (nn.Sequential(net_of(), nn.LazyBatchNorm1d(affine=False)), "Sequential: has weights without a shape"),
    (torch.jit.script(net_of()), "RecursiveScriptModule: is TorchScript: give the network that it was made of"),
    (torch.jit.trace(net_of(), X), "TopLevelTracedModule: is TorchScript"),
    (EXPORTED, "ExportedProgram: is a torch.nn.Module"),
    (EXPORTED.module(), "GraphModule: is an exported program: give the network that it was made of"),
]


def raises(*_):
    raise RuntimeError("by itself")


def renamed(change):
    return dict(map(change, MASKS.items()))


# What is given beside a network that would work, and what the message begins with.
PRUNE = [
    ({"net": "resnet50"}, "net=str: is a torch.nn.Module"),
    ({"net": None}, "net=NoneType: is a torch.nn.Module"),
    ({"net": nn.Linear}, "net=Linear: is a class: give a network of it, Linear(...)"),
    ({"net": Bare()}, "layers=None: leaves no layer to prune (it has no Linear and no convolution)"),
    ({"net": SWAPPED}, "net=Sequential: was swapped already: give a copy"),
    ({"sparsity": 1.0}, "sparsity=1.0: is the fraction of zeros, in [0, 1)"),
    ({"sparsity": 75}, "sparsity=75: is the fraction of zeros"),
    ({"sparsity": float("nan")}, "sparsity=nan: is the fraction of zeros"),
    ({"sparsity": "0.5"}, "sparsity='0.5': is the fraction of zeros"),
    ({"pattern": "tile"}, "pattern=tile: did you mean tile_2_4 or tile_wise? it is one of block_2_4, block_wise, "),
    ({"pattern": "dense"}, "pattern=dense: takes no weights away"),
    ({"pattern": NM(m=64)}, "pattern.m=64: is larger than every layer; the largest is "),
    ({"pattern": BlockWise(4), "sparsity": 0.001}, "sparsity=0.001: rounds to no change: block_wise "),
    ({"net": nn.Sequential(nn.Linear(7, 4)), "layers": "0"}, "pattern=n_m: fits no prunable layer"),
    ({"allocation": "global_threshold"}, "allocation=global_threshold: pattern n_m can meet latency_aware, per_layer"),
    ({"granularity": 8}, "granularity=8: pattern=n_m takes no granularity"),
    ({"pattern": TileWise}, "pattern="),
    ({"pattern": "tile_wise", "granularity": 0}, "granularity=0: must be greater than"),
    ({"pattern": "tile_wise", "granularity": 10**6}, "granularity=1000000: is larger than every layer"),
    ({"pattern": "tile_wise", "granularity": "x"}, "granularity=x: must be a valid integer"),
    ({"pattern": TileWise(16), "granularity": 8}, "granularity=8: give it to TileWise(...)"),
    ({"importance": "taylr"}, "importance=taylr: did you mean taylor? it is one of fisher, magnitude, "),
    ({"importance": "movement"}, "importance=movement: "),
    ({"importance": "wanda"}, "calibration=None: importance=wanda comes from inputs"),
    ({"importance": "wanda", "calibration": "data"}, "calibration=str: is a DataLoader"),
    ({"importance": "wanda", "calibration": []}, "calibration=empty: must give at least one batch"),
    ({"importance": "wanda", "calibration": X}, "calibration=a tensor [32, 16]: holds batches: give a list"),
    ({"importance": "wanda", "calibration": lambda: []}, "calibration=a function that returns list: opens a loader"),
    ({"importance": "wanda", "calibration": lambda: None}, "calibration=a function that returns NoneType: opens a Da"),
    ({"importance": "wanda", "calibration": [[1, 2, 3]]}, "calibration=list of 3: holds batches"),
    ({"importance": "wanda", "calibration": {"x": X}}, "calibration=dict: is a DataLoader"),
    ({"importance": "wanda", "calibration": DataLoader}, "calibration=DataLoader: is a DataLoader, another iterable"),
    ({"importance": "wanda", "calibration": [(X[:, :3], Y)]}, "calibration=input torch.float32 [32, 3]: the"),
    ({"importance": "wanda", "calibration": [(X[:, :3], Y)], "layers": "2"}, "calibration=a batch of input torch.fl"),
    ({"importance": "wanda", "calibration": [{"pixel": X}]}, "calibration="),
    ({"importance": "taylor", "calibration": DATA}, "loss=None: may be left out only where the network returns its"),
    ({"importance": "taylor", "calibration": DATA, "loss": SUMS}, "loss=[32]: must be the mean over the batch"),
    ({"importance": "taylor", "calibration": DATA, "loss": "ce"}, "loss='ce': is a function (output, target)"),
    ({"importance": "taylor", "calibration": DATA, "loss": nn.CrossEntropyLoss}, "loss=CrossEntropyLoss: is a class"),
    ({"importance": "taylor", "calibration": DATA, "loss": lambda output: output}, "loss=<lambda>: is a function"),
    (
        {"importance": "taylor", "calibration": DATA, "loss": raises},
        "loss=raises: fails when called with (output, target)",
    ),
    ({"example_inputs": ()}, "example_inputs=(): holds no tensor"),
    ({"example_inputs": {"pixels": X}}, "example_inputs['pixels']=given: is no argument of Sequential.forward,"),
    ({"net": Scaled(), "example_inputs": (X,)}, "example_inputs=x torch.float32 [32, 16]: lacks scale, which Scaled"),
    ({"example_inputs": (X.long(),)}, "example_inputs=input torch.int64 [32, 16]: the network cannot be called"),
    ({"example_inputs": (X.to(META),)}, "example_inputs['input']=meta: must be on the network's device, cpu"),
    ({"example_inputs": (X[:0],)}, "example_inputs=input torch.float32 [0, 16]: holds an empty batch"),
    ({"example_inputs": (3,)}, "example_inputs['input']=int: must be a tensor"),
    ({"example_inputs": (X,) * 3}, "example_inputs=3 tensors: the network's forward names input"),
    ({"layers": "body.*"}, "layers=body.*: finds no Linear or convolution; there are 0, 2, 4"),
    ({"layers": lambda name, module: False}, "layers=<lambda>: chooses no layer"),
    ({"layers": 3}, "layers=3: is a name, a glob pattern"),
    ({"layers": "0", "ignore": ["2"]}, "ignore=2: finds none of the layers to prune: 0"),
    ({"ignore": {"boby": "it is sensitive"}}, "ignore=boby: finds none of the layers to prune: 0, 2"),
    ({"ignore": 3}, "ignore=3: is a name, a glob pattern"),
    ({"layers": lambda name: True}, "layers=<lambda>: is names, glob patterns, or a predicate of (name, module)"),
    ({"layers": nn.Linear}, "layers=Linear: is a class"),
    ({"tell": None}, "tell=None: is a function that takes a line"),
    ({"task": "classification"}, "task=str: is a task"),
    ({"search": sf.Search}, "search=Search: is a sf.Search(...)"),
]
OF_MASKS = [
    (None, "masks=None: is a dict with at least one layer name"),
    ({}, "masks={}: is a dict with at least one layer name"),
    (list(MASKS.values()), "masks=list: is a dict"),
    (MASKS["2"], "masks=Tensor: is a dict"),
    ({"2": torch.ones(8, 8, dtype=torch.bool)}, "masks['2']=torch.bool [8, 8]: must be bool [32, 32]"),
    (renamed(lambda pair: (pair[0], pair[1].float())), "masks['0']=torch.float32 [32, 16]: must be bool"),
    (renamed(lambda pair: (pair[0], pair[1].numpy())), "masks['0']=ndarray: must be bool"),
    (renamed(lambda pair: (f"{pair[0]}.weight", pair[1])), "masks['0.weight']=given: names no layer"),
    (renamed(lambda pair: (pair[0], pair[1].to(META))), "masks['0']=on the meta device: must be a plain tensor"),
    (renamed(lambda pair: (pair[0], pair[1].to_sparse())), "masks['0']=torch.sparse_coo: must be a plain tensor"),
]
RECOVER = [
    ({"net": PRUNED.to}, "net=method: is a torch.nn.Module"),
    ({"net": SWAPPED}, "masks['0']=given: names no layer of the network that has a weight; after sf.swap"),
    ({"epochs": 0}, "epochs=0: must be a whole number of at least 1"),
    ({"epochs": -1}, "epochs=-1: must be a whole number of at least 1"),
    ({"epochs": "3"}, "epochs='3': must be a whole number"),
    ({"lr": float("nan")}, "lr=nan: must be a finite number"),
    ({"lr": -1}, "lr=-1: must be greater than 0"),
    ({"lr": 1001}, "lr=1001: must be less than or equal to 1000"),
    ({"recovery": "fine"}, "recovery=fine: did you mean finetune? it is one of cast, distill, finetune, "),
    ({"recovery": "sr_ste"}, "initial_net=None: recovery=sr_ste needs it"),
    ({"recovery": "weight_rewind"}, "epoch_weights=None: recovery=weight_rewind needs it"),
    ({"recovery": "none", "epochs": 2}, "epochs=2: recovery=none trains nothing: leave epochs out"),
    ({"recovery": "none", "lr": 0.01}, "lr=0.01: recovery=none trains nothing: leave lr out"),
    ({"recovery": "sparse_swaps", "epochs": 2, "dense_net": PRUNED}, "epochs=2: recovery=sparse_swaps trains nothing"),
    ({"recovery": Finetune(epochs=1), "epochs": 2}, "epochs=2: give it to Finetune(...), not beside recovery="),
    ({"recovery": Finetune(lr=0.1), "lr": 0.01}, "lr=0.01: give it to Finetune(...), not beside recovery="),
    ({"recovery": "obs_update", "dense_net": nn.Linear(1, 1)}, "dense_net=Linear: does not fit the model; missing"),
    ({"recovery": "distill", "dense_net": 3}, "dense_net=3: is a torch.nn.Module, or a function without arguments"),
    ({"recovery": "distill", "dense_net": lambda: None}, "dense_net()=NoneType: is a torch.nn.Module"),
    ({"recovery": "weight_rewind", "epochs": 2, "epoch_weights": {1: {}, 2: {}}}, "epoch_weights=of epochs 1, 2:"),
    ({"recovery": "distill"}, "dense_net=None: recovery=distill needs it"),
    ({"recovery": "distill", "dense_net": nn.Linear}, "dense_net=Linear: is a torch.nn.Module, or a function without"),
    ({"recovery": "distill", "dense_net": nn.Linear(3, 3)}, "dense_net=Linear: the network cannot be called with it"),
    ({"recovery": "sr_ste", "initial_net": nn.Linear(3, 3)}, "initial_net=Linear: "),
    ({"recovery": "distill", "dense_net": PRUNED, "train_dataloader": [(X[:, :3], Y)]}, "train_dataloader=a batch"),
    ({"recovery": "weight_rewind", "epochs": 1, "epoch_weights": {0: {}}}, "epoch_weights[0]=given: does not fit"),
    ({"recovery": "weight_rewind", "epoch_weights": [{}]}, "epoch_weights=list: is a dict: epoch"),
    ({"recipe": torch.optim.Adam}, "recipe=Adam: is a sf.Recipe(...), or None"),
    ({"recipe": {"lr": 1}}, "recipe=dict: is a sf.Recipe(...), or None"),
    ({"trainer": {"devices": 1}}, "trainer=dict: is a sf.TrainerSettings(...), or None"),
    ({"context": "x"}, "context=str: is a RunContext"),
    ({"train_dataloader": None}, "train_dataloader=NoneType: is a DataLoader"),
    ({"train_dataloader": DataLoader}, "train_dataloader=DataLoader: is a class"),
    ({"train_dataloader": lambda: DATA}, "train_dataloader=<lambda>: is batches, or a function: number of a round"),
    ({"train_dataloader": []}, "train_dataloader=empty: must give at least one batch"),
    ({"train_dataloader": itertools.cycle(DATA)}, "train_dataloader=cycle: has no length"),
    ({"train_dataloader": [(X, Y, Y)]}, "train_dataloader=tuple of 3: holds batches (inputs, target)"),
    ({"train_dataloader": [(X.double(), Y)]}, "train_dataloader=a batch of input torch.float64 [32, 16]: the network"),
    ({"train_dataloader": [{"pixel": X}]}, "train_dataloader=a batch of nothing that the network takes: the network"),
    ({"train_dataloader": [X]}, "loss=cross_entropy: fails when called with (output, batch), as train_dataloader gi"),
    ({"train_dataloader": [(X, Y.float())]}, "loss=cross_entropy: fails when called with (output, target)"),
    ({"train_dataloader": [(X * float("nan"), Y)]}, "stage recover cannot train: the loss is nan before any weight ch"),
    ({"loss": "cross_entropy"}, "loss='cross_entropy': is a function"),
    ({"loss": lambda output, target: 1.0}, "loss=float: must be the mean over the batch"),
    ({"loss": lambda output, target: None}, "loss=NoneType: must be the mean over the batch"),
    ({"loss": lambda output, target: output}, "loss=[32, 4]: must be the mean over the batch"),
    ({"loss": lambda output, target: output.detach().sum()}, "loss=torch.float32 without a gradient: must have"),
    ({"loss": None}, "loss=None: may be left out only where"),
]
SWAP = [
    ({"net": net_of(1)}, "0: 256 pruned weights are not zero; apply the masks first"),
    ({"net": SWAPPED}, "net=Sequential: was swapped already"),
    ({"net": torch.compile(SWAPPED)}, "net=Sequential: was swapped already"),
    ({"example_inputs": None}, "example_inputs=NoneType: is a tensor, a sequence of tensors"),
    ({"example_inputs": (X[:, :3],)}, "example_inputs=input torch.float32 [32, 3]: the network cannot be called"),
    ({"example_inputs": (X.to(META),)}, "example_inputs['input']=meta: must be on the network's device"),
    ({"kernel": "fastest"}, "kernel=fastest: is one of auto"),
    ({"kernel": None}, "kernel=None: is one of auto, sparse"),
    ({"kernel": ["gathered"]}, "kernel=['gathered']: is one of auto, sparse"),
    ({"kernel": "ell"}, "kernel.family=ell: runs on none of the pruned layers"),
    ({"kernel": "gathered_sm90"}, "kernel.name=gathered_sm90: runs on none of the pruned layers"),
    ({"packed": "x"}, "packed=str: is PackedWeights"),
    ({"seconds": -1}, "seconds=-1: is how long a search may take: a number, 0 or more"),
    ({"tell": None}, "tell=None: is a function that takes a line"),
]
BENCHMARK = [
    ({"net": PRUNED, "dense_net": PRUNED}, "net=Sequential: is the same object as dense_net"),
    ({"net": nn.Linear(16, 5)}, "net=[[32, 5]]: must give outputs of the shapes of dense_net's, [[32, 4]]"),
    ({"net": net_of().double()}, "net=torch.float64: is timed in"),
    ({"net": nn.Linear(3, 3)}, "net=Linear: it cannot be called with the example inputs"),
    ({"net": Scaled()}, "example_inputs=x torch.float32 [32, 16]: lacks scale"),
    ({"settings": {"samples": 5}}, "settings=dict: is a sf.Measure(...), or None"),
    ({"settings": sf.Measure}, "settings=Measure: is a sf.Measure(...), or None"),
    ({"fuse": "no"}, "fuse='no': is a function"),
    ({"seconds": "60"}, "seconds=60: is how long a search may take: a number, 0 or more"),
    ({"tell": None}, "tell=None: is a function that takes a line"),
    ({"example_inputs": (X[:, :3],)}, "example_inputs=input torch.float32 [32, 3]: dense_net cannot be called"),
]


def ids(case) -> str:
    return " ".join(map(str, case)).replace("\n", " ")[:40] if isinstance(case, dict) else str(case)[:30]


def told(call, *nets) -> str:
    """What a call says that is refused; the networks must be as they were."""
    before = [(net, copy.deepcopy(net.state_dict()), [m.training for m in net.modules()], hooks(net)) for net in nets]
    with pytest.raises(ValueError) as found:
        call()
    for net, weights, modes, hooked in before:
        assert [m.training for m in net.modules()] == modes and hooks(net) == hooked
        assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items() if not value.is_meta)
    said = str(found.value)
    assert "\n" not in said
    return said


def hooks(net: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules())


def networks(net: object) -> list[nn.Module]:
    """The network, where it can be compared before and after."""
    comparable = isinstance(net, nn.Module) and not any(map(nn.parameter.is_lazy, net.parameters()))
    return [net] if comparable else []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_networks(tmp_path):
    for net, message in NETWORKS:
        calls = {
            "prune": lambda net=net: sf.prune(net, "n_m", 0.5, example_inputs=(X,), tell=len),
            "recover": lambda net=net: sf.recover(net, MASKS, DATA, F.cross_entropy),
            "swap": lambda net=net: sf.swap(net, MASKS, (X,)),
            "benchmark": lambda net=net: sf.benchmark(net_of(), net, (X,), tell=len),
            "narrow": lambda net=net: sf.narrow(net, MASKS),
            "save": lambda net=net: sf.save(tmp_path / "new", net, MASKS),
            "hold": lambda net=net: sf.hold(net, MASKS),
        }
        for function, call in calls.items():
            assert told(call).startswith(f"net={message}"), function
        assert told(lambda net=net: sf.benchmark(net, net_of(), (X,), tell=len)).startswith(f"dense_net={message}")
    assert not list(tmp_path.iterdir())
    assert told(lambda: sf.load(tmp_path, {})).startswith("net=dict: is a torch.nn.Module")


@pytest.mark.parametrize(("given", "message"), PRUNE, ids=ids)
def test_prune(given, message):
    call = {"net": net_of(), "pattern": "n_m", "sparsity": 0.5, "tell": lambda line: None, **given}
    assert told(lambda: sf.prune(**call), *networks(call["net"])).startswith(message)


@pytest.mark.parametrize(("given", "message"), OF_MASKS, ids=ids)
@pytest.mark.parametrize("function", ["recover", "swap", "save", "hold"])
def test_masks(function, given, message, tmp_path):
    net = copy.deepcopy(PRUNED)
    calls = {
        "recover": lambda: sf.recover(net, given, DATA, F.cross_entropy),
        "swap": lambda: sf.swap(net, given, (X,)),
        "save": lambda: sf.save(tmp_path / "new", net, given),
        "hold": lambda: sf.hold(net, given),
    }
    assert told(calls[function], net).startswith(message) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("given", "message"), RECOVER, ids=ids)
def test_recover(given, message):
    call = {"net": copy.deepcopy(PRUNED), "masks": MASKS, "train_dataloader": DATA, "loss": F.cross_entropy, **given}
    assert told(lambda: sf.recover(**call), *networks(call["net"])).startswith(message)


@pytest.mark.parametrize(("given", "message"), SWAP, ids=ids)
def test_swap(given, message):
    call = {"net": copy.deepcopy(PRUNED), "masks": MASKS, "example_inputs": (X,), **given}
    assert told(lambda: sf.swap(**call), *networks(call["net"])).startswith(message)


def test_kernels_of_the_environment(monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS", "cuda")
    with pytest.raises(ValueError, match="^SPARSEFRONT_KERNELS=cuda: is triton, or unset for all kernels$"):
        sf.swap(copy.deepcopy(PRUNED), MASKS, (X,))


@pytest.mark.parametrize(("given", "message"), BENCHMARK, ids=ids)
def test_benchmark(given, message):
    call = {"dense_net": net_of(), "net": copy.deepcopy(PRUNED), "example_inputs": (X,), **given}
    assert told(lambda: sf.benchmark(**call), call["dense_net"], call["net"]).startswith(message)


@pytest.mark.parametrize("given", [None, 5, "", b"x", ["x"], "a\0b"], ids=repr)
def test_a_folder_is_a_path(given):
    net = copy.deepcopy(PRUNED)
    assert told(lambda: sf.save(given, net, MASKS), net).startswith("folder=")
    assert told(lambda: sf.load(given, net), net).startswith("folder=")
    assert told(lambda: sf.load_run(given)).startswith("run_folder=")
    assert told(lambda: sf.run("seed=1", config_dir=given)).startswith("config_dir=")


def test_save_and_load(tmp_path):
    net = copy.deepcopy(PRUNED)
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere", tmp_path / ("x" * 300)):
        assert "cannot be written" in told(lambda folder=folder: sf.save(folder, net, MASKS))
    new = tmp_path / "new"
    assert "are not zero" in told(lambda: sf.save(new, net_of(1), MASKS))
    assert told(lambda: sf.save(new, net, MASKS, tokenizer="bert")) == "tokenizer=str: is no tokenizer of transformers"
    assert told(lambda: sf.save(new, net, MASKS, model="bert")).startswith("model=str: ")
    assert told(lambda: sf.save(new, net, MASKS, weights="none")).startswith("weights=none: is no file")
    assert told(lambda: sf.save(new, SWAPPED, MASKS)).startswith("masks['0']=given: names no layer of the network that")
    assert not new.exists()
    assert "is not an export: model.safetensors is missing" in told(lambda: sf.load(new, net))
    sf.save(new, net, MASKS)
    for name in ("cut", "less"):
        shutil.copytree(new, tmp_path / name)
    (tmp_path / "cut" / "model.safetensors").write_bytes((new / "model.safetensors").read_bytes()[:99])
    (tmp_path / "less" / "model.safetensors").unlink()
    for name in ("none", "file", "cut", "less", "."):
        assert told(lambda name=name: sf.load(tmp_path / name, net), net).startswith("folder=")
        assert told(lambda name=name: sf.load_run(tmp_path / name)).startswith("run_folder=")
    assert told(lambda: sf.load(new, nn.Linear(3, 3))).startswith("folder=")
    for trust in ("mylab", 5, [1]):
        assert told(lambda trust=trust: sf.load(new, net, trust=trust)).startswith("trust=")
        assert told(lambda trust=trust: sf.load_run(new, trust=trust)).startswith("trust=")


def changed(value: float, *, bias: bool) -> nn.Module:
    net = copy.deepcopy(PRUNED)
    (net[0].bias if bias else net[0].weight).data.flatten()[3] = value
    return net


BAD_X, BAD_Y = X.clone(), torch.rand(32, 4)
BAD_X[2, 5], BAD_Y[3, 1] = float("inf"), float("nan")
INF, NAN = "holds 0 NaN and 1 infinite of", "holds 1 NaN and 0 infinite of"
CALIBRATED = {"importance": "taylor", "loss": F.mse_loss, "tell": len}
NOT_FINITE = {
    "prune": (lambda: sf.prune(changed(float("inf"), bias=False), "n_m", 0.5), f"net=Sequential: .*0.weight {INF} 512"),
    "prune's bias": (lambda: sf.prune(changed(float("nan"), bias=True), "n_m", 0.5), f"net=.*0.bias {NAN} 32"),
    "swap": (lambda: sf.swap(changed(float("nan"), bias=False), MASKS, (X,)), f"net=Sequential: .*0.weight {NAN} 512"),
    "save": (lambda: sf.save("never", changed(float("nan"), bias=True), MASKS), f"net=Sequential: .*0.bias {NAN} 32"),
    "inputs": (lambda: sf.swap(copy.deepcopy(PRUNED), MASKS, (BAD_X,)), f"example_inputs=input .*: .*input {INF} 512"),
    "prune's inputs": (lambda: sf.prune(net_of(), "n_m", 0.5, example_inputs=(BAD_X,)), f"example_inputs=.*{INF} 512"),
    "calibration": (
        lambda: sf.prune(net_of(), "n_m", 0.5, calibration=[(BAD_X, X[:, :4])], **CALIBRATED),
        f"calibration=input .*: .*input {INF} 512",
    ),
    "targets": (
        lambda: sf.prune(net_of(), "n_m", 0.5, calibration=[(X, BAD_Y)], **CALIBRATED),
        f"calibration=input .*: .*the target {NAN} 128",
    ),
}


@pytest.mark.parametrize(("call", "message"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_values_that_are_not_finite(call, message):
    with pytest.raises(InvalidSetting, match=f"^{message}$") as caught:
        call()
    assert "\n" not in str(caught.value)
