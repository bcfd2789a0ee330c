"""A sweep that could not run, or would have no point, ends before it begins, in one line."""

import pytest
from omegaconf import OmegaConf

from sparsefront.config import command_line
from sparsefront.config.command_line import check_sweep
from sparsefront.errors import InvalidSetting
from sparsefront.options import CONF

BASIC = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}
OPTUNA = {"_target_": "hydra_plugins.hydra_optuna_sweeper.OptunaSweeper", "n_jobs": 1}


def multirun(*overrides: str, sweeper=BASIC, launcher=None):
    sources = [
        {"schema": "pkg", "path": "hydra.conf"},
        {"schema": "file", "path": str(CONF)},
        {"schema": "structured", "path": ""},
    ]
    hydra = {"sweeper": sweeper, "launcher": launcher or {}, "overrides": {"task": list(overrides)}}
    return OmegaConf.create({"hydra": hydra | {"runtime": {"config_sources": sources}}})


REJECTED = {
    "interval": (
        ["sparsity=interval(0.5,0.9)"],
        {},
        r"sparsity=interval\(0\.5,0\.9\): needs hydra/sweeper=optuna .*a,b or",
    ),
    "tagged interval": (["sparsity=tag(log, interval(0.5,0.9))"], {}, "sparsity=.*: needs hydra/sweeper=optuna"),
    "interval of a file": (
        [],
        {"sweeper": BASIC | {"params": {"seed": "interval(0,9)"}}},
        "seed=.* needs hydra/sweeper",
    ),
    "no processes": (["seed=1,2"], {"launcher": {"n_jobs": 0}}, "hydra.launcher.n_jobs=0: takes 1 or more, or -1"),
    "no trials": (["seed=1,2"], {"sweeper": OPTUNA | {"n_jobs": 0}}, "hydra.sweeper.n_jobs=0: takes 1 or more, or -1"),
    "glob": (
        ["seed=1,2", "experiment=glob(nothing_*)"],
        {},
        r"experiment=glob\(nothing_\*\): finds no option of the group; there are .*digits_gradual",
    ),
    "all excluded": (["pattern=glob(*,exclude=*)"], {}, "pattern=glob.*: finds no option .*n_m, .*tile_wise"),
    "range": (["seed=range(5,5)"], {}, "seed=range.*: is no value at all"),
}


@pytest.mark.parametrize(("overrides", "parts", "message"), REJECTED.values(), ids=REJECTED)
def test_rejected_with_its_key(overrides, parts, message):
    config = multirun(*overrides, **parts)
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        check_sweep(config)
    with pytest.raises(SystemExit, match=f"^{message}"):
        command_line.Sweep().on_multirun_start(config)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["pattern=n_m,tile_wise", "seed=range(3)", "sparsity=tag(a, choice(0.5,0.75))", "measure.batch_size=[1,8]"],
            {},
        ),
        (["pattern=glob(*)", "experiment=glob(distribution_*)", "hydra/job_logging=glob(nothing)"], {}),
        (["sparsity=interval(0.5,0.9)"], {"sweeper": OPTUNA}),
        (["seed=1,2"], {"launcher": {"n_jobs": -1}}),
        ([], {}),
    ],
    ids=["plain", "globs", "optuna", "joblib", "one point"],
)
def test_sweeps_that_can_run_pass(overrides, parts):
    check_sweep(multirun(*overrides, **parts))
