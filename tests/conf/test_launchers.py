"""The presets of launchers and samplers name what the released plugins take; each is checked where its plugin is installed."""

import importlib
import inspect
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parents[2] / "conf" / "hydra"
LAUNCHERS = sorted(file.stem for file in (CONF / "launcher").glob("*.yaml"))
SAMPLERS = sorted(file.stem for file in (CONF / "sweeper" / "sampler").glob("*.yaml"))


def preset(name: str):
    return OmegaConf.load(CONF / "launcher" / f"{name}.yaml")


def test_there_is_one_for_each_launcher():
    assert LAUNCHERS == ["joblib", "ray", "submitit_local", "submitit_slurm"]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_preset_has_keys_that_the_plugin_knows(name):
    module = OmegaConf.to_container(preset(name), resolve=False)["_target_"].rpartition(".")[0]
    pytest.importorskip(module, reason=f"the plugin of hydra/launcher={name} is not installed: it comes with an extra")
    config = importlib.import_module(f"{module.rpartition('.')[0]}.{'_config' if name == 'ray' else 'config'}")
    stored = ConfigStore.instance().load(f"hydra/launcher/{name}.yaml").node
    assert config is not None and set(preset(name)) <= set(stored) and preset(name)._target_ == stored._target_


def test_a_slurm_job_has_a_gpu_memory_and_time_and_comes_back_after_preemption():
    slurm = preset("submitit_slurm")
    assert (slurm.gpus_per_node, slurm.mem_gb, slurm.timeout_min) == (1, 64, 720)
    assert slurm.max_num_timeout > 0 and slurm.additional_parameters.requeue is True
    assert preset("ray").ray.remote.num_gpus == 1 == preset("submitit_local").gpus_per_node


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_takes_the_settings_of_its_preset(name):
    optuna = pytest.importorskip(
        "optuna", minversion="4.5", reason="optuna is not installed: it comes with the extra sweep"
    )
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "sweeper" / "sampler" / f"{name}.yaml"), resolve=False)
    sampler = getattr(optuna.samplers, settings.pop("_target_").rpartition(".")[2])
    assert set(settings) <= set(inspect.signature(sampler).parameters) and settings["seed"] == "${seed}"


def test_the_search_of_the_preset_is_composed(composed):
    from hydra.core.hydra_config import HydraConfig

    composed("hydra/sweeper=optuna", "hydra/sweeper/sampler=nsgaii", "seed=7")
    sweeper = HydraConfig.get().sweeper
    assert sweeper.sampler.seed == 7 and sweeper.sampler.population_size == 12
    assert sweeper._target_ == "hydra_plugins.sparsefront_search.OptunaSweeper" and sweeper.batch == 1
