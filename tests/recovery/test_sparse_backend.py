"""Training by kept weights alone: it follows the masked one, resumes, leaves the network itself, and says what it cannot do."""

import copy
import json
import logging

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sparsefront_kernels.blocked.training import TrainableBlockedLinear
from torch import nn
from whole_calls import on_every_rank

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.recovery import sparse_backend
from sparsefront.recovery.distill import Distill
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.lr_rewind import LearningRateRewind
from sparsefront.recovery.rounds import RunContext
from sparsefront.schedule.gradual import Gradual
from sparsefront.training.compilation import CompileSteps
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

TRAINER = TrainerSettings(accelerator="cpu", progress_bar=False, checkpoint=False)
X = torch.randn(160, 24, generator=torch.Generator().manual_seed(1))
BATCHES = [(x, x[:, :5].square().argmax(dim=1)) for x in X.split(8)]


TILES = TileWise(8, input_multiple=1)
SGD = Recipe(gradient_clip=None, lr=0.05, optimizer="sgd")
GRADUAL = Gradual(initial_sparsity=0.2, updates=5)


def pruned(seed=0, sparsity=0.7, schedule="one_shot", pattern=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 32), nn.Linear(32, 5))
    return net, sf.prune(net, pattern or BlockWise("8x4"), sparsity, schedule=schedule, tell=len)


def trained(net, masks, *, backend, trainer=TRAINER, epochs=10, **given):
    torch.manual_seed(5)
    net = copy.deepcopy(net)
    batches = [(x.to(net[0].weight.dtype), y) for x, y in BATCHES]
    left = sf.recover(net, masks, batches, F.cross_entropy, backend=backend, epochs=epochs, trainer=trainer, **given)
    return net, left


@pytest.mark.parametrize(
    "given",
    [
        {"recipe": Recipe(gradient_clip=None, lr=1e-2, weight_decay=0.1, ema=0.9), "epochs": 10},
        {"recipe": SGD, "accumulate": 2},
        {"recipe": Recipe(gradient_clip=None), "precision": "bf16-mixed"},
        {"recipe": Recipe(gradient_clip=None), "recovery": Distill(hidden_states=1.0, hidden_layers=["0", "3"])},
        {"recipe": Recipe(gradient_clip=None), "schedule": "iterative"},
        {"recipe": Recipe(gradient_clip=None), "pattern": TILES, "recovery": LearningRateRewind()},
        {"recipe": Recipe(gradient_clip=None, lr=1e-2, weight_decay=0.1), "schedule": GRADUAL},
        {"recipe": SGD, "schedule": GRADUAL, "pattern": TileWise(8, element_overlay=0.1), "epochs": 10},
    ],
    ids=[
        "adamw, averages",
        "sgd, accumulated",
        "bf16",
        "distilled",
        "rounds",
        "tiles, rewound",
        "gradual",
        "gradual, tiles, overlay",
    ],
)
def test_training_follows_the_masked_one(given):
    """In double precision: AdamW makes whole steps of gradients that are rounding errors, whose order differs by processor."""
    given, epochs = dict(given), given.get("epochs", 3)
    trainer = {"accumulate_grad_batches": given.pop("accumulate", 1), "precision": given.pop("precision", "auto")}
    net, masks = pruned(schedule=given.pop("schedule", "one_shot"), pattern=given.pop("pattern", None))
    if "recovery" in given:
        given["dense_net"] = pruned()[0].double()
    settings = TrainerSettings(accelerator="cpu", progress_bar=False, checkpoint=False, **trainer)
    if settings.precision == "auto":
        net.double()
    given["epochs"] = epochs * settings.accumulate_grad_batches
    (dense, of_dense), (sparse, of_sparse) = (
        trained(net, masks, backend=backend, trainer=settings, **given) for backend in ("dense", "sparse")
    )
    assert sum(record.steps for record in of_sparse.rounds) == 20 * epochs
    assert of_sparse.rounds[-1].samples == of_dense.rounds[-1].samples
    assert of_sparse.rounds[-1].updates == of_dense.rounds[-1].updates
    assert all(torch.equal(of_sparse[name], mask) for name, mask in of_dense.items())
    tolerance = {"rtol": 0, "atol": 2e-2} if settings.precision == "bf16-mixed" else {"rtol": 1e-6, "atol": 1e-8}
    for name, weight in dense.state_dict().items():
        torch.testing.assert_close(sparse.state_dict()[name], weight, **tolerance)
    assert all(not sparse.get_submodule(name).weight[~mask].any() for name, mask in of_sparse.items())
    assert not torch.equal(sparse[0].weight, net[0].weight)


def test_network_is_small_meanwhile():
    net, masks = pruned()
    seen = {}

    class Watch(pl.Callback):
        def on_train_start(self, trainer, module):
            optimizer = trainer.optimizers[0]
            seen["parameters"] = {name: tuple(one.shape) for name, one in module.net.named_parameters()}
            seen["optimized"] = [tuple(one.shape) for group in optimizer.param_groups for one in group["params"]]

    layers, parameters = list(net), list(net.parameters())
    hooked, calls = net[3], []
    hooked.register_forward_hook(lambda *_: calls.append(1))
    finetune = Finetune(backend="sparse")
    object.__setattr__(finetune, "callbacks", lambda round: (Watch(),))
    net.eval()[0].train()
    sf.recover(net, masks, BATCHES, F.cross_entropy, recovery=finetune, epochs=1, trainer=TRAINER)
    kept = int(masks["0"].sum()) // 32
    assert seen["parameters"]["0.weight"] == (kept, 8, 4) and seen["parameters"]["3.weight"] == (32, 48)
    assert (kept, 8, 4) in seen["optimized"] and (48, 24) not in seen["optimized"] and calls
    assert list(net) == layers and all(one is other for one, other in zip(net.parameters(), parameters, strict=True))
    assert net[0].training and not net[3].training and net[0].weight.grad is None


def test_other_patterns_train_under_masks(caplog):
    net, masks = pruned()
    others = sf.prune(net, "n_m", 0.5, ignore=["0"], tell=len)
    del masks["3"]
    both = masks | others
    with caplog.at_level(logging.INFO):
        sparse, left = trained(net, both, backend="sparse", epochs=2, recipe=Recipe(gradient_clip=None))
    assert "1 layer trained by kept weights alone; 1 layer under dense masks: 3 is pruned by n_m" in caplog.text
    dense, _ = trained(net, both, backend="dense", epochs=2, recipe=Recipe(gradient_clip=None))
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert all(not sparse.get_submodule(name).weight[~mask].any() for name, mask in left.items())


def test_blocks_for_compilation():
    block = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    net = nn.ModuleDict({"blocks": nn.ModuleList([block, copy.deepcopy(block)]), "head": nn.Linear(16, 2)})
    expected = CompileSteps("blocks")._modules(net).keys()
    for part in net["blocks"]:
        part[0] = TrainableBlockedLinear.from_masked(part[0], torch.ones(16, 16).bool(), (8, 8))
    assert CompileSteps("blocks")._modules(net).keys() == expected == {"blocks.0", "blocks.1"}


def test_blocks_in_plain_masks():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 32), nn.Linear(32, 5))
    halves = torch.tensor([[True, False]]).repeat_interleave(32, 0).repeat_interleave(32, 1)
    masks = {"0": torch.ones(64, 24).bool(), "2": halves}  # the first layer is whole, and no block divides it
    with pytest.raises(InvalidSetting, match="not for element_wise"):
        trained(net, masks | {"3": torch.rand(5, 32) < 0.5}, backend="sparse", epochs=1)
    sparse, _ = trained(net, masks, backend="sparse", epochs=1, recipe=Recipe(gradient_clip=None))
    dense, _ = trained(net, masks, backend="dense", epochs=1, recipe=Recipe(gradient_clip=None))
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_two_ranks_follow_the_masked_training(bodies, served_ranks, tmp_path):
    two = TrainerSettings(accelerator="cpu", devices=2, limit_batches=6, progress_bar=False, checkpoint=False)
    ends = on_every_rank(bodies.train_by_blocks, two, trainer=two, folder=tmp_path, loggers=[])
    first, second = ends["sparse"]
    for name, weight in ends["dense"][0].items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], weight, rtol=1e-3, atol=1e-4)


def split(masks):
    masks["0"][0, 0] ^= True


def frozen(net):
    net[3].weight.requires_grad_(False)


def shared(net):
    net[3] = nn.Linear(24, 48)
    net[3].weight = net[0].weight


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pattern": "n_m"}, r"recovery\.backend=sparse: has kernels with a backward pass for pattern=block_wise,"),
        ({"schedule": "gradual", "recipe": Recipe(ema=0.9)}, r"recovery\.backend=sparse: averages no weights"),
        ({"change": frozen}, r"recovery\.backend=sparse: trains weights, and that of 3 is frozen"),
        ({"change": shared}, r"recovery\.backend=sparse: trains each layer by itself, and 0, 3 share a weight"),
        ({"edit": split}, r"recovery\.backend=sparse: trains whole blocks, and the mask of 0 has others \(blocked:"),
        ({"recovery": Finetune(quantize=True)}, r"recovery\.backend=sparse: .*quantize"),
        ({"recovery": "sr_ste"}, r"backend=sparse: must be 'dense' \(its update needs gradients of pruned weights"),
        ({"recovery": "none"}, r"backend=sparse: is a setting of recoveries that train"),
        ({"backend": "fast"}, "backend=fast: must be 'dense', 'sparse' or 'auto'"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_refusals_before_training(given, message):
    net, masks = pruned(schedule=given.pop("schedule", "one_shot"))
    if pattern := given.pop("pattern", None):
        masks = sf.prune(net, pattern, 0.5, tell=len)
    if edit := given.pop("edit", None):
        edit(masks)
    if change := given.pop("change", None):
        change(net)
        masks = sf.Masks(
            {name: torch.ones_like(net[int(name)].weight).bool() for name in ("0", "3")}, pruning=masks.pruning
        )
    with pytest.raises(InvalidSetting, match=f"^{message}") as refused:
        trained(net, masks, **{"backend": "sparse", "initial_net": net} | given)
    assert "\n" not in str(refused.value) and "use dense" in f"{refused.value} use dense"


@pytest.mark.parametrize("faster", ["dense", "sparse"])
def test_auto_takes_the_faster_backend(faster, monkeypatch, caplog, tmp_path):
    timed, seconds = sparse_backend._step_seconds, []

    def step_seconds(round, *given):
        timed(round, *given)  # trains for a few steps
        seconds.append(
            1.0 if any(isinstance(part, TrainableBlockedLinear) for part in round.net) == (faster == "sparse") else 2.0
        )
        return seconds[-1]

    monkeypatch.setattr(sparse_backend, "_has_kernels", lambda round: True)
    monkeypatch.setattr(sparse_backend, "_step_seconds", step_seconds)
    (net, masks), context = pruned(), RunContext(tmp_path, tmp_path / "resume", keep_finished=True)
    keeping = TrainerSettings(accelerator="cpu", progress_bar=False)
    with caplog.at_level(logging.INFO):
        found, _ = trained(net, masks, backend="auto", epochs=2, trainer=keeping, context=context)
    assert "auto: a step takes" in caplog.text and sorted(seconds) == [1.0, 2.0]
    kept = json.loads(next(tmp_path.glob("resume/round_*/backend.json")).read_text())
    expected, _ = trained(net, masks, backend=faster, epochs=2)
    assert kept == faster
    assert all(torch.equal(one, other) for one, other in zip(found.parameters(), expected.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", ["none", "network"])
def test_gpu_trains_by_kernels(compiled, caplog):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 5))
    masks = sf.prune(net, "block_wise", 0.5, granularity=64, ignore=["0"], tell=len)
    batches = [(x, x[:, :5].argmax(dim=1)) for x in torch.randn(320, 32).split(32)]
    settings = TrainerSettings(
        accelerator="gpu", precision="bf16-mixed", compile=compiled, checkpoint=False, progress_bar=False
    )
    ends = {}
    for backend in ("dense", "sparse", "auto"):
        with caplog.at_level(logging.INFO):
            ends[backend] = copy.deepcopy(net)
            torch.manual_seed(5)
            recipe = Recipe(gradient_clip=None)
            sf.recover(ends[backend], masks, batches, F.cross_entropy, backend=backend, trainer=settings, recipe=recipe)
    assert "auto: a step takes" in caplog.text
    for backend in ("sparse", "auto"):
        for one, other in zip(ends[backend].parameters(), ends["dense"].parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-2)
