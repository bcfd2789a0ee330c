"""An experiment's network, data and task, and their weights and masks on disk."""

import copy
from functools import lru_cache
from pathlib import Path

import pytorch_lightning as pl
import torch
from safetensors.torch import load_file
from torch import nn

from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.experiment import Experiment
from sparsefront.export.tensors_digest import tensors_digest
from sparsefront.finite import first_non_finite
from sparsefront.stages.seeds import reseed, stage_seed
from sparsefront.tasks.base import Task
from sparsefront.tasks.registry import build_task
from sparsefront.training.optimization import Optimization


def open_data(experiment: Experiment, *, seed: int = 0, batch_size: int | None = None) -> pl.LightningDataModule:
    """A fresh data module, ready to give loaders.

    Args:
        seed: of the order and the augmentations of train.
        batch_size: null = the recipe's.
    """
    tokenizer = getattr(experiment.model, "tokenizer", None)
    with keys_of("dataset"):
        return experiment.dataset.data_module(
            batch_size=batch_size or experiment.recipe.batch_size,
            seed=seed,
            cache_dir=experiment.cache_dir / "data",
            tokenizer_from=None if tokenizer is None else keys_of("model")(tokenizer),
        )


@lru_cache(maxsize=1)
def _initial_net(experiment: Experiment) -> nn.Module:
    """Read or drawn once per run; never handed out itself."""
    reseed(stage_seed(experiment.seed, "initial weights"))
    try:
        net = experiment.model.build(experiment.dataset.info)
    except InvalidSetting as error:
        raise error.within("model") from error
    if (found := first_non_finite(dict(net.named_parameters()))) is not None:
        allowed = f"cannot be used: its initial {found.name} holds {found.counts} values"
        raise InvalidSetting("model", experiment.choices["model"], allowed)
    return net


def build_net(experiment: Experiment) -> nn.Module:
    """The network with its pretrained or seeded random weights, fp32, on the CPU."""
    return copy.deepcopy(_initial_net(experiment))


def load_net(experiment: Experiment, weights: Path) -> nn.Module:
    """The network with the weights that a stage stored."""
    net = build_net(experiment)
    net.load_state_dict(load_file(weights))
    return net


def make_task(experiment: Experiment, net: nn.Module, optimization: Optimization | None = None) -> Task:
    return build_task(experiment.dataset.info.kind, net, experiment.dataset, optimization)


def device_of(experiment: Experiment) -> torch.device:
    """Where scores and masks are made."""
    return torch.device(experiment.trainer.device)


def weights_digest(net: nn.Module) -> str:
    """`tensors_digest` of the state dict."""
    return tensors_digest(net.state_dict())
