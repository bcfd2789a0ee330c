"""The presets of launchers and samplers name what the released plugins take; each is checked where its plugin is installed."""

import importlib
import inspect
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import sparsefront.config.schema  # noqa: F401  (registers the resolvers)

CONF = Path(__file__).resolve().parents[2] / "conf" / "hydra"
LAUNCHERS = sorted(file.stem for file in (CONF / "launcher").glob("*.yaml"))
SAMPLERS = sorted(file.stem for file in (CONF / "sweeper" / "sampler").glob("*.yaml"))


def preset(name: str):
    return OmegaConf.load(CONF / "launcher" / f"{name}.yaml")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_preset_keys_are_of_the_plugin(name):
    module = OmegaConf.to_container(preset(name), resolve=False)["_target_"].rpartition(".")[0]
    pytest.importorskip(module, reason=f"the plugin of hydra/launcher={name} is not installed: it comes with an extra")
    config = importlib.import_module(f"{module.rpartition('.')[0]}.{'_config' if name == 'ray' else 'config'}")
    stored = ConfigStore.instance().load(f"hydra/launcher/{name}.yaml").node
    assert config is not None and set(preset(name)) <= set(stored) and preset(name)._target_ == stored._target_


def test_slurm_job_returns_after_preemption():
    slurm = preset("submitit_slurm")
    assert (slurm.gpus_per_node, slurm.mem_gb, slurm.timeout_min) == (1, 64, 720)
    assert slurm.max_num_timeout > 0 and slurm.additional_parameters.requeue is True
    assert preset("submitit_local").gpus_per_node == 1


@pytest.mark.parametrize(
    ("address", "environment", "gpu_here", "expected"),
    [
        (None, None, False, ("local", 0)),
        (None, None, True, ("local", 1)),
        ("auto", None, False, ("auto", 1)),
        (None, "10.0.0.1:6379", False, ("10.0.0.1:6379", 1)),
    ],
    ids=["a laptop", "a machine with a GPU", "a cluster that is named", "a cluster of the environment"],
)
def test_gpus_of_a_ray_point(monkeypatch, address, environment, gpu_here, expected):
    """Ray would wait for a GPU that it does not have, for ever."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu_here)
    config = OmegaConf.create({"hydra": {"launcher": preset("ray")}})
    if address is not None:
        config.hydra.launcher.ray.init.address = address
    ray = OmegaConf.to_container(config, resolve=True)["hydra"]["launcher"]["ray"]
    assert (ray["init"]["address"], ray["remote"]["num_gpus"]) == expected
    config.hydra.launcher.ray.remote.num_gpus = 0.5
    assert config.hydra.launcher.ray.remote.num_gpus == 0.5


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_takes_its_preset(name):
    optuna = pytest.importorskip(
        "optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra sweep"
    )
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "sweeper" / "sampler" / f"{name}.yaml"), resolve=False)
    sampler = getattr(optuna.samplers, settings.pop("_target_").rpartition(".")[2])
    assert set(settings) <= set(inspect.signature(sampler).parameters) and settings["seed"] == "${seed}"
