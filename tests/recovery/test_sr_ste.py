"""SR-STE: the step by hand, against plain loops over several steps, and what comes out of a whole run."""

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from sparsefront.config.validate import validate
from sparsefront.importance.magnitude import Magnitude
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.training_masks import StraightThrough
from sparsefront.recovery.window_masks import WindowMasks
from sparsefront.training.trainer import TrainerSettings

LR, MOMENTUM, DECAY = 0.1, 0.9, 0.05


class Regression(pl.LightningModule):
    def __init__(self, net: nn.Module, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__()
        self.net, self.momentum, self.weight_decay = net, momentum, weight_decay
        self.validated: list[dict[str, torch.Tensor]] = []

    def training_step(self, batch, batch_index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_index):
        self.validated.append({name: value.clone() for name, value in self.net.state_dict().items()})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=self.momentum, weight_decay=self.weight_decay)


def masks_of(sparsity: float, pattern=None) -> WindowMasks:
    return WindowMasks(pattern or NM(m=4), Magnitude(), MaskSpec(), sparsity)


def train(module: Regression, through: StraightThrough, data: list, *, accumulate: int = 1) -> None:
    settings = TrainerSettings(accelerator="cpu", accumulate_grad_batches=accumulate, progress_bar=False)
    trainer = settings.build(epochs=1, gradient_clip=None, callbacks=[through], loggers=[], directory=None)
    trainer.fit(module, _batches(data), _batches(data[:1]))


def _batches(data: list) -> DataLoader:
    xs, ys = (torch.cat(parts) for parts in zip(*data, strict=True))
    return DataLoader(TensorDataset(xs, ys), batch_size=len(data[0][0]))


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """The mask by loops; ties to the lower index."""
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    for row in range(weight.shape[0]):
        for window in range(0, weight.shape[1], 4):
            places = sorted(range(window, window + 4), key=lambda k: (-abs(weight[row, k].item()), k))
            for place in places[:2]:
                mask[row, place] = True
    return mask


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_follow_the_formula(accumulate):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    data = [(torch.randn(5, 8), torch.randn(5, 4)) for _ in range(6)]
    expected = _by_loops(net, data, accumulate, weight_decay=0.01)
    through = StraightThrough(net, ["0", "2"], make_masks=masks_of(0.5), decay=DECAY)
    train(Regression(net, MOMENTUM, weight_decay=0.01), through, data, accumulate=accumulate)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


def _by_loops(net: nn.Module, data: list, accumulate: int, weight_decay: float) -> dict[str, torch.Tensor]:
    weights = {name: value.detach().clone() for name, value in net.named_parameters()}
    speed = {name: None for name in weights}
    for first in range(0, len(data), accumulate):
        masks = {name: two_of_four(weights[name]) for name in ("0.weight", "2.weight")}
        total = {name: torch.zeros_like(value) for name, value in weights.items()}
        for x, y in data[first : first + accumulate]:
            used = {name: (w * masks[name] if name in masks else w).requires_grad_() for name, w in weights.items()}
            loss = nn.functional.mse_loss(functional_call(net, used, (x,)), y) / accumulate
            for name, gradient in zip(used, torch.autograd.grad(loss, list(used.values())), strict=True):
                total[name] += gradient
        for name, weight in weights.items():
            weight = weight.detach()
            gradient = total[name] + weight_decay * weight
            if name in masks:
                gradient += DECAY * (~masks[name]) * weight
            speed[name] = gradient if speed[name] is None else MOMENTUM * speed[name] + gradient
            weights[name] = weight - LR * speed[name]
    return weights


@pytest.mark.parametrize(
    "overrides",
    [["pattern=n_m"], ["pattern=vector_wise", "granularity=32", "pattern.distribution=balanced"]],
    ids=["n_m", "vector_wise"],
)
def test_start_and_end_of_a_run(composed, tmp_path, overrides):
    """Hardly trained, the result is the initial network under the mask of its own magnitude, not the dense run's."""
    from safetensors.torch import load_file

    from sparsefront.pipeline import run_experiment
    from sparsefront.pruning.mask_spec import load_masks
    from sparsefront.stages.network import build_net

    config = composed(
        "debug=tiny", "recovery=sr_ste", "recovery.lr=1e-12", "sparsity=0.5", "trainer=cpu", "measure.device=cpu",
        "stages=[dense,prune,recover]", *overrides,
    )  # fmt: skip
    run_experiment(config)
    experiment = validate(config)
    initial = build_net(experiment).state_dict()
    (folder,) = (entry for entry in (tmp_path / "cache" / "recover").iterdir() if entry.is_dir())
    weights, masks = load_file(folder / "weights.safetensors"), load_masks(folder / "masks.safetensors")
    assert masks
    for layer, mask in masks.items():
        start = initial[f"{layer}.weight"]
        assert torch.equal(mask, experiment.pattern.mask(start.abs(), 0.5))
        torch.testing.assert_close(weights[f"{layer}.weight"], start * mask, rtol=0, atol=1e-6)
        assert torch.equal(weights[f"{layer}.weight"][~mask], torch.zeros(int((~mask).sum())))
