"""Training steps through torch.compile: the same weights but for rounding, one code for all blocks, and nothing left behind."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import MPNetConfig, MPNetForSequenceClassification

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.data.digits import Digits
from sparsefront.errors import InvalidSetting
from sparsefront.models.attention import fuse_attention
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import ApplyMasks
from sparsefront.schedule.gradual import Gradual
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training import compilation
from sparsefront.training.compilation import ChooseSteps, CompileSteps, why_unavailable
from sparsefront.training.fit import fit
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

BLOCKS, BATCHES = 3, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(16, 16), nn.LayerNorm(16), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(nn.functional.gelu(self.linear(self.norm(x))))


class Net(nn.Module):
    """Rows of an image as tokens, the first `length` of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 16), nn.Linear(16, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.length = 8

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.squeeze(1)[:, : self.length])
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Lengths(pl.Callback):
    """Each step has other lengths than the one before."""

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        module.net.length = 2 + trainer.global_step % 5


class Watch(pl.Callback):
    """Whether the blocks' forwards are replaced in training."""

    def __init__(self) -> None:
        self.replaced: set[bool] = set()

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        self.replaced.add("forward" in vars(module.net.blocks[0]))


def train(folder: Path, compile: str, *callbacks: pl.Callback, precision="32-true") -> Net:
    """Two epochs under 2:4 masks that tighten."""
    pl.seed_everything(0, verbose=False)
    net = Net()
    layers = [f"blocks.{i}.linear" for i in range(BLOCKS)]
    masked = MaskedWeights(net, layers)

    def masks_at(sparsity, previous):
        scores = {name: net.get_submodule(name).weight.detach().abs() for name in layers}
        return make_masks(scores, NM(m=4), PerLayer(), sparsity, final_sparsity=0.5, previous=previous)

    masked.set(masks_at(0.0, None))
    steps = 2 * BATCHES
    tighten = ApplyMasks(masked, schedule=Gradual(updates=2), sparsity=0.5, make_masks=masks_at, total_steps=steps)
    trainer = {"accelerator": "cpu", "progress_bar": False, "limit_batches": BATCHES, "precision": precision}
    recipe = Recipe(epochs=2)
    fit(
        ImageClassification(net, num_classes=10, optimization=Optimization(recipe, lr=0.01, total_steps=steps)),
        Digits().data_module(batch_size=16, seed=0, cache_dir=folder),
        epochs=2,
        recipe=recipe,
        trainer=TrainerSettings(**trainer, compile=compile),
        loggers=[],
        directory=folder,
        callbacks=(tighten, Lengths(), *callbacks),
    )
    masked.remove()
    return net


def difference(first: nn.Module, second: nn.Module) -> float:
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.fixture
def traced(monkeypatch):
    """Graphs are taken as with the default backend, and run as they are: no code is generated."""
    whole = torch.compile
    monkeypatch.setattr(
        compilation.torch,
        "compile",
        lambda forward, *, dynamic, options: whole(forward, dynamic=dynamic, backend="aot_eager"),
    )
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.mark.skipif(why_unavailable(on_gpu=False) is not None, reason=f"{why_unavailable(on_gpu=False)}")
def test_weights_are_equal_but_rounding(tmp_path):
    """With dropout, lengths and sizes of batches that vary, masks that tighten, and an epoch's validation between."""
    torch.compiler.reset()
    counters.clear()
    plain, compiled = train(tmp_path, "none"), train(tmp_path, "blocks")
    assert difference(plain, compiled) < 1e-5
    assert counters["stats"]["unique_graphs"] == 1, "one code for all blocks and lengths"
    assert all(torch.equal(*(net.blocks[i].linear.weight == 0 for net in (plain, compiled))) for i in range(BLOCKS))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("what", "precision"), [("blocks", "32-true"), ("blocks", "bf16-mixed"), ("network", "32-true")]
)
def test_the_network_is_plain_again_afterwards(traced, tmp_path, what, precision):
    watch = Watch()
    compiled = train(tmp_path, what, watch, precision=precision)
    assert counters["stats"]["unique_graphs"] >= 1 and watch.replaced == {what == "blocks"}
    assert all("forward" not in vars(module) for module in compiled.modules())
    assert difference(train(tmp_path, "none", precision=precision), compiled) < (
        1e-5 if precision == "32-true" else 2e-2
    )


def test_fused_attention_shares_one_code(traced):
    """Each block of its own would compile for a minute and more on a GPU."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80}
    net = MPNetForSequenceClassification(MPNetConfig(vocab_size=50, **sizes)).train()
    steps = CompileSteps("blocks")
    with fuse_attention(net):
        steps.on_train_start(None, SimpleNamespace(net=net, states=None, teacher=None))
        for batch, length in ((6, 20), (6, 28), (5, 24)):
            net(input_ids=torch.randint(5, 50, (batch, length))).logits.sum().backward()
        steps.on_train_end(None, None)
    assert counters["stats"]["unique_graphs"] == 1


class Replaced(CompileSteps):
    """Notes when forwards are replaced, without compiling or capturing."""

    made: list = []

    def __init__(self, what, *, graphs):
        super().__init__("none")
        self.what, self.running = what, False
        Replaced.made.append(self)

    def on_train_start(self, trainer, module):
        assert not any(one.running for one in Replaced.made)
        self.running = True

    def on_train_end(self, trainer, module):
        self.running = False


@pytest.mark.parametrize(
    ("seconds", "steps", "tried", "kept"),
    [
        ({None: 1.0, "none": 0.5, "blocks": 0.25}, 1000, ["none", "blocks"], "blocks"),
        ({None: 1.0, "none": 0.5, "blocks": 0.75}, 1000, ["none", "blocks", "none"], "none"),
        ({None: 1.0, "none": 2.0, "blocks": 3.0}, 1000, ["none", "blocks"], None),
        ({None: 0.1, "none": 0.05, "blocks": 0.01}, 300, ["none"], "none"),  # code would not pay for itself
        ({None: 0.01, "none": 0.001, "blocks": 0.001}, 60, [], None),  # nor would graphs
    ],
)
def test_auto_keeps_the_fastest_steps(monkeypatch, seconds, steps, tried, kept):
    Replaced.made.clear()
    clock = [0.0]
    monkeypatch.setattr(compilation, "_now", lambda device: clock[0])
    trainer = SimpleNamespace(estimated_stepping_batches=steps, global_step=0)
    task = ImageClassification(Net(), num_classes=10)
    choose = ChooseSteps(blocks=True, graphs=True, faster=Replaced)

    def running():
        return next((one.what for one in Replaced.made if one.running), None)

    for step in range(60):
        choose.on_train_batch_start(trainer, task, {"x": torch.zeros(4 + step % 3, 2)}, step % 20)
        if step % 20 == 19:
            clock[0] += 100  # validation
        clock[0] += seconds[running()] * (4 + step % 3)
    assert [one.what for one in Replaced.made] == tried and running() == kept
    choose.on_train_end(None, task)
    assert running() is None


def test_without_a_compiler_it_is_rejected(monkeypatch):
    monkeypatch.setattr(compilation.shutil, "which", lambda command: None)
    with pytest.raises(InvalidSetting, match=r"compile='?blocks'?: needs a compiler, g\+\+ or clang\+\+"):
        TrainerSettings(accelerator="cpu", compile="blocks").check()
    TrainerSettings(accelerator="cpu").check()
