"""Names of run folders: sortable, valid everywhere, with pattern and sparsity."""

import re

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict

from sparsefront.config import schema  # noqa: F401  (registers the resolvers)


@pytest.fixture
def composed(request):
    root = request.config.rootpath

    def make(*overrides):
        with initialize_config_dir(str(root / "conf"), version_base="1.3"):
            return compose("config", overrides=list(overrides), return_hydra_config=True)

    yield make
    GlobalHydra.instance().clear()


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "tile_wise_0.75"),
        (["pattern=n_m", "sparsity=0.5"], "n_m_0.5"),
        (["pattern=dense"], "dense"),
        (["sparsity=0.90625"], "tile_wise_0.90625"),
        (["sparsity=1.5"], "tile_wise_1.5"),
    ],
)
def test_run_name_states_the_pruning(composed, overrides, label):
    found = composed(*overrides)
    assert re.fullmatch(rf"results/\d{{4}}-\d\d-\d\d_\d\d-\d\d-\d\d-\d{{6}}_{re.escape(label)}", found.hydra.run.dir)
    with open_dict(found.hydra):
        found.hydra.job.num = 9
    assert found.hydra.sweep.subdir == f"010_{label}"


def test_own_pattern_makes_a_valid_name(composed):
    found = composed()
    with open_dict(found.hydra):
        found.hydra.runtime.choices.pattern = "mine/tiles: 4"
    assert found.hydra.run.dir.endswith("_mine-tiles-4_0.75")
