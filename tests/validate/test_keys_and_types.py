"""Unknown and badly typed keys are rejected, each with what is allowed."""

import pytest

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

REJECTED = {
    "unknown key in a group": (["+pattern.width=3"], r"pattern\.width=3: unknown key; pattern takes granularity"),
    "unknown key at the root": (
        ["+sparsty=0.5"],
        r"sparsty=0.5: unknown key; did you mean sparsity\? the root takes sparsity",
    ),
    "wrong type in a group": (["recipe.epochs=many"], r"recipe\.epochs=many: must be a whole number"),
    "batch 0": (["recipe.batch_size=0"], r"recipe\.batch_size=0: must be a whole number of at least 1"),
    "key of several other options": (
        ["+pattern.m=4"],
        r"pattern\.m=4: unknown key of pattern=tile_wise; choose .*pattern=n_m or pattern=vector_wise",
    ),
    "seed negative": (["seed=-1"], r"^seed=-1: must be a whole number from 0 to 4294967295"),
    "seed beyond 32 bits": (["seed=4294967296"], r"^seed=4294967296: "),
    "rate that is no number": (["recipe.lr=nan"], r"^recipe\.lr=nan: must be a finite number"),
    "rate without end": (["recovery.lr=inf"], r"^recovery\.lr=inf: must be a finite number"),
    "class of nowhere": (["pattern._target_=nowhere.Striped"], r"^pattern\._target_=nowhere\.Striped: .*'nowhere'"),
    "interpolation of nowhere": (["recipe.lr=${nowhere}"], r"^recipe\.lr=\${nowhere}: Interpolation key 'nowhere'"),
    "cache without a name": (["cache_dir="], "^cache_dir=: names no folder"),
    "cache that cannot be": (["cache_dir=/proc/sparsefront"], "cache_dir=/proc/sparsefront: cannot be written"),
}


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_rejected_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


OWN = """
from sparsefront.patterns.dense import Dense
from sparsefront.patterns.base import Pattern

class Nameless(Pattern):
    steps, storage, rounding_unit = Dense.steps, Dense.storage, Dense.rounding_unit

class Foreign:
    name = "foreign"
"""


@pytest.mark.parametrize(
    ("target", "message"),
    [("Nameless", "does not define name"), ("Foreign", "must derive from sparsefront.patterns.base.Pattern")],
)
def test_a_class_that_is_no_option_is_named(composed, own_modules, target, message):
    own_modules({"own_classes.py": OWN})
    with pytest.raises(InvalidSetting, match=rf"pattern\._target_=own_classes.{target}: {message}"):
        validate(composed("pattern=dense", f"pattern._target_=own_classes.{target}"))


EMPTY = """
from dataclasses import make_dataclass

KEYS = {keys}
Foreign = make_dataclass("Foreign", [(key, object, None) for key in KEYS])
"""
BASE = {
    "recipe": "sparsefront.training.recipe.Recipe",
    "kernel": "sparsefront.inference.choice.KernelChoice",
    "measure": "sparsefront.measure.settings.Measure",
    "report": "sparsefront.results.run_report.Report",
    "trainer": "sparsefront.training.trainer.TrainerSettings",
    "logger": "sparsefront.results.loggers.Logging",
}


@pytest.mark.parametrize("group", BASE)
def test_a_class_of_another_group_is_named(composed, own_modules, group):
    """Also where the class takes the very keys that the group's YAML gives."""
    keys = [key for key in composed("logger=none")[group] if key != "_target_"]
    own_modules({"foreign_classes.py": EMPTY.format(keys=keys)})
    with pytest.raises(
        InvalidSetting, match=rf"^{group}\._target_=foreign_classes.Foreign: must derive from {BASE[group]}"
    ):
        validate(composed("logger=none", f"{group}._target_=foreign_classes.Foreign"))
