"""A value that can be right in no point of a sweep ends it before the first one; points that do not go together do not."""

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

import sparsefront.config.schema  # noqa: F401  (registers the schema and the resolvers)
from sparsefront.config.sweeps import PointLoader, check_values, point_check
from sparsefront.errors import InvalidSetting
from sparsefront.options import CONF


@pytest.fixture
def sweep():
    """Hydra's loader, and the configuration of a sweep."""
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="run"):
        loader = GlobalHydra.instance().config_loader()
        yield loader, loader.load_configuration("config", ["hydra.job.chdir=false"], run_mode=RunMode.MULTIRUN)


@pytest.fixture
def check(sweep):
    """check(*overrides) -> the points that were looked at."""
    loader, config = sweep

    def checked(*overrides: str) -> list[list[str]]:
        looked_at, check_point = [], point_check(config, loader)

        def noted(point):
            looked_at.append(list(point))
            check_point(point)

        check_values(overrides, noted, loader)
        return looked_at

    return checked


@pytest.mark.parametrize(
    "overrides",
    [
        ["pattern=n_m", "sparsity=0.5", "pattern.m=8", "experiment=digits_gradual"],
        ["~dataset.shift", "+hydra.job.env_set.X=1", "recipe.lr=0.1", "stages=[dense,prune]", "seed=3"],
        ["recovery=distill", "recovery.epochs=2", "measure.samples=7", "sparsity=0.5", "sparsity=0.75"],
    ],
    ids=["options", "added and left out", "given twice"],
)
def test_points_equal_those_of_hydra(sweep, overrides):
    loader, config = sweep
    loaded = [load(config, overrides) for load in (PointLoader(loader, None), loader.load_sweep_config)]
    point, expected = (OmegaConf.to_container(one, resolve=False) for one in loaded)
    assert point == expected


REJECTED = {
    "the last of a list": (
        ["seed=1,2", "sparsity=0.5,1.7"],
        "sparsity=1.7: must be a number of at least 0 and below 1",
    ),
    "the first of a list": (["sparsity=1.7,0.5", "seed=1,2"], "sparsity=1.7: must be"),
    "the end of an interval": (["sparsity=interval(0.5,1.2)"], "sparsity=1.2: must be"),
    "the begin of one": (["recipe.lr=tag(log, interval(-1,1))"], "recipe.lr=-1.0: must be a number greater than 0"),
    "the end of a range": (["measure.samples=range(9,-9,-3)"], "measure.samples=-6: must be"),
    "read from the root": (["granularity=8,0", "pattern=tile_wise,block_wise"], "granularity=0: must be"),
    "a rate beyond all": (["recipe.lr=0.1,2000"], "recipe.lr=2000: must be a number greater than 0 and at most 1000"),
    "a stage twice": (["stages=[dense],[prune,prune]"], "stages=['prune', 'prune']: names prune more than once"),
    "of one option": (["pattern=n_m", "pattern.m=4,-8"], "pattern.m=-8: must be"),
    "what holds for all": (["seed=1,2", "recipe.lr=-1"], "recipe.lr=-1: must be"),
    "a key of no option": (
        ["seed=1,2", "recipe.lrr=1"],
        "recipe.lrr=1: unknown key; did you mean lr? recipe takes batch_size, epochs, lr, ",
    ),
    "a key of one option alone": (
        ["pattern=n_m,tile_wise", "pattern.n=1"],
        "pattern.n=1: unknown key of pattern=tile_wise; choose pattern=n_m, which takes it",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED)
def test_a_value_out_of_its_range_is_rejected(check, overrides, message):
    with pytest.raises(InvalidSetting) as rejected:
        check(*overrides)
    assert str(rejected.value).startswith(message)


@pytest.mark.parametrize(
    "overrides",
    [
        ["pattern=tile_wise,block_wise", "granularity=4x64,128"],
        ["pattern=block_wise,tile_wise", "granularity=4x64,128", "seed=1,2"],
        ["pattern=n_m", "sparsity=0.5", "pattern.m=4,5,8"],
        ["pattern=glob(*)", "~recipe.ema", "experiment=glob(distribution_*)"],
        ["pattern=n_m,tile_wize"],
        ["seed=1"],
    ],
    ids=["one option takes it", "another option takes it", "not together", "globs", "a typo", "one point"],
)
def test_what_may_be_right_in_some_point_passes(check, overrides):
    check(*overrides)


def test_as_many_points_are_looked_at_as_there_are_values(check):
    looked_at = check("sparsity=0.5,0.75", "pattern=n_m,tile_wise", "seed=range(10000)", "sparsity=0.5,0.75,0.9")
    assert sorted(looked_at) == [
        ["pattern=n_m", "seed=0", "sparsity=0.5"],
        ["pattern=n_m", "seed=0", "sparsity=0.75"],
        ["pattern=n_m", "seed=0", "sparsity=0.9"],
        ["pattern=n_m", "seed=9999", "sparsity=0.5"],
        ["pattern=tile_wise", "seed=0", "sparsity=0.5"],
    ]
