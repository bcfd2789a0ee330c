"""Studies made up for tests."""

import pytest
from made_study import FOLDER


@pytest.fixture(scope="module")
def folder():
    return FOLDER


@pytest.fixture
def study(modules):
    """Two columns, three lines, of which one is a headline in one column; on digits."""
    definition = modules["definition"]
    rows = {
        "EW": definition.Row(("pattern=element_wise",), paper=(90.5, None), headline=("50 %",)),
        "2:4": definition.Row(("pattern=n_m", "pattern.m=4")),
        "BW": definition.Row(("pattern=block_wise",), paper=(80,)),
    }
    columns = {"50 %": ("sparsity=0.5",), "75 %": ("sparsity=0.75",)}
    table = definition.Table("Patterns", columns, rows, paper="of a source")
    network = "vit_small_digits"
    targets = {network: {"50 %": 80.0}}
    return definition.Study(
        "trial", "A trial", "About it.", (network,), (table,), headline_seeds=(0, 1), targets=targets
    )


@pytest.fixture
def levels(modules):
    """Five levels of two lines, whose crossing is retrained; recoveries have the seeds."""
    definition = modules["definition"]
    columns = {f"{level} %": (f"sparsity={level / 100}",) for level in (10, 30, 50, 70, 90)}
    rows = {"uniform": definition.Row(("pattern=uniform",)), "EW": definition.Row(("pattern=element_wise",))}
    table = definition.Table("Levels", columns, rows, crossing=definition.Crossing(1.0, 3))
    more = {"headline_seeds": (0,), "seed_key": "recovery.seed"}
    return definition.Study("trial", "A trial", "About it.", ("vit_small_digits",), (table,), **more)
