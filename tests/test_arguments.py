"""What a user types and Hydra would not take."""

from pathlib import Path

import pytest

from sparsefront import arguments
from sparsefront.arguments import GROUPS, understood
from sparsefront.errors import InvalidSetting
from sparsefront.group_options import RENAMED_KEYS

CONF = Path(__file__).resolve().parent.parent / "conf"


@pytest.mark.parametrize("group", ["experiment", "debug", "pattern"])
def test_a_group_with_a_plus_is_the_group(group):
    assert understood([f"+{group}=name", "seed=1"]) == [f"{group}=name", "seed=1"]


def test_other_additions_stay_what_they_are():
    typed = ["+pattern.width=3", "+hydra.job.env_set.A=1", "++seed=3", "~allocation", "pattern=n_m", "+other=1"]
    assert understood(typed) == typed


@pytest.mark.parametrize(
    "flags", [["--config-dir", "DIR"], ["--config-dir=DIR"], ["-cd", "DIR", "-m"], ["--cfg", "job"], ["--info", "all"]]
)
def test_flags_may_stand_between_overrides(flags):
    assert understood(["seed=1", *flags, "pattern=n_m"]) == [*flags, "seed=1", "pattern=n_m"]


def test_no_experiment_and_no_debugging_are_the_default():
    assert understood(["experiment=null", "debug=null", "granularity=null"]) == ["granularity=null"]


def test_a_group_needs_an_option():
    with pytest.raises(InvalidSetting, match="^allocation=null: choose an option of the group: allocation=NAME"):
        understood(["seed=1", "allocation=null"])


def test_every_group_of_the_configuration_is_known():
    folders = {folder.name for folder in CONF.iterdir() if folder.is_dir()} - {"hydra"}
    assert set(GROUPS) == folders


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("hydra/sweeper=optuna", "optuna is not installed: pip install -e .*sweep"),
        ("hydra/launcher=joblib", "hydra-joblib-launcher is not installed: pip install -e .*joblib"),
        ("hydra/launcher=ray", "hydra-ray-launcher is not installed: pip install -e .*ray"),
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher is not installed: pip install -e .*submitit"),
    ],
)
def test_a_missing_plugin_is_told_with_what_installs_it(monkeypatch, argument, message):
    monkeypatch.setattr(arguments, "_installed", lambda distribution: False)
    with pytest.raises(InvalidSetting, match=f"^{argument}: the package {message}"):
        understood(["-m", argument, "seed=1,2"])
    monkeypatch.setattr(arguments, "_installed", lambda distribution: True)
    assert understood([argument]) == [argument]


def test_a_sweep_on_slurm_needs_its_commands(monkeypatch):
    monkeypatch.setattr(arguments, "_installed", lambda distribution: True)
    sweep, here = ["-m", "hydra/launcher=submitit_slurm", "seed=1,2"], {"python": "/usr/bin/python"}
    monkeypatch.setattr(arguments.shutil, "which", here.get)
    expected = "^hydra/launcher=submitit_slurm: Slurm's sbatch and srun are not found here: start .*submitit_local and .*joblib"
    with pytest.raises(InvalidSetting, match=expected):
        understood(sweep)
    shown = ["--cfg", "hydra", "hydra/launcher=submitit_slurm"]
    assert understood(shown) == shown, "what is only shown starts nothing"
    here |= {"sbatch": "/usr/bin/sbatch", "srun": "/usr/bin/srun"}
    assert understood(sweep) == sweep


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_a_key_of_an_earlier_version_names_the_present_one(old, new, prefix):
    with pytest.raises(InvalidSetting, match=rf"^{old}=3: is {new} now$"):
        understood(["-m", "seed=1,2", f"{prefix}{old}=3"])
    assert understood([f"{new}=3"]) == [f"{new}=3"]
