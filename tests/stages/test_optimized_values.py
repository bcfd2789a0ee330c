"""A sweeper that optimizes is rejected, before training, a value that the record will not hold; a plain sweep goes on."""

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import open_dict, read_write

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment

ON_CPU = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1"]
NO_SWAP = "stages=[dense,prune,recover,export,measure,report]"


@pytest.fixture
def swept(composed):
    """As `composed`, as a point of a sweep by another sweeper than Hydra's own."""

    def make(*overrides: str, target: str = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"):
        config = composed(*ON_CPU, *overrides)
        hydra = HydraConfig.get()
        with read_write(hydra), open_dict(hydra):
            hydra.mode = RunMode.MULTIRUN
            hydra.sweep.dir = "results/sweep"
            hydra.sweeper._target_ = target
        return config

    return make


REJECTED = {
    "nothing is pruned": (["pattern=dense"], "val_sparse: a run with pattern=dense does not measure val_sparse"),
    "no kernels for lifted masks": (
        ["recovery.dense_after=0.5", "optimize=[val_sparse,speedup]"],
        r"speedup: a run with recovery\.dense_after, which leaves a dense network, does not measure speedup",
    ),
    "no kernels": (["kernel=none"], "val_sparse: a run with kernel=none does not measure val_sparse"),
    "no swap": (
        [NO_SWAP, "optimize=[val_masked,speedup]"],
        "speedup: a run with stages without swap does not measure speedup",
    ),
    "no record": (["stages=[dense,prune,recover]"], "val_sparse: there will be no record: stages ends with recover"),
    "no GPU": (
        ["optimize=[peak_memory_bytes_sparse]"],
        "peak_memory_bytes_sparse: .*measure.device=cpu does not measure peak",
    ),
    "no low precision": (["optimize=[val_dense_low]"], "val_dense_low: a run without measure.dense_low does not"),
    "low precision on a CPU": (
        ["precision=fp8", "optimize=[speedup]"],
        "speedup: a run on a CPU, which has references alone in low",
    ),
    "no control": (["optimize=[val_dense_continued]"], "val_dense_continued: a run without control=dense_continued"),
    "no search": (["optimize=[latency_predicted_ms]"], "latency_predicted_ms: a run without a latency search"),
    "no GPU to train on": (
        ["optimize=[recovery_gpu_busy_share]"],
        "recovery_gpu_busy_share: a run that trains on a CPU does not measure",
    ),
    "all rows labeled": (
        ["optimize=[recovery_unlabeled_samples]"],
        r"recovery_unlabeled_samples: a run without dataset\.unlabeled=true does not measure",
    ),
    "a word": (["optimize=[val_sparse,commit]"], "commit: is no number"),
    "a mapping": (["optimize=[sparsity_per_layer]"], "sparsity_per_layer: is no number"),
    "the reporting split": (
        ["optimize=[speedup,sparse]"],
        "sparse: is of the reporting split, by which OptunaSweeper must not choose: take val_sparse",
    ),
    "nothing": (["optimize=[]"], r"\[\]: OptunaSweeper needs at least one value"),
}


# what nobody can or should choose by, a plain sweep neither; what the record lacks is simply absent there
UNFIT = [REJECTED[case][0] for case in ("a word", "a mapping", "the reporting split", "nothing")]


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_unrecordable_value_is_rejected_first(swept, composed, overrides, message):
    with pytest.raises(InvalidSetting, match=f"^optimize={message}") as rejected:
        validate(swept(*overrides))
    assert "OptunaSweeper" in str(rejected.value) and "\n" not in str(rejected.value)
    basic = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
    for plain in (lambda: composed(*ON_CPU, *overrides), lambda: swept(*overrides, target=basic)):
        if overrides in UNFIT:
            with pytest.raises(InvalidSetting, match="^optimize="):
                validate(plain())
        else:
            validate(plain())


def test_nothing_held_out_chooses_nothing(swept, composed):
    nothing = ["dataset.valid_fraction=0", "optimize=[speedup]"]
    with pytest.raises(
        InvalidSetting, match="^dataset.valid_fraction=0.0: leaves nothing to choose by, and Optuna"
    ) as rejected:
        validate(swept(*nothing))
    assert "\n" not in str(rejected.value)
    validate(composed(*ON_CPU, *nothing))
    validate(swept(*nothing, target="hydra._internal.core_plugins.basic_sweeper.BasicSweeper"))


def test_unforeseen_value_is_rejected_last(swept, monkeypatch):
    monkeypatch.setattr("sparsefront.stages.measure.make_dense_graph", None)
    config = swept("debug=tiny", "pattern=dense", "optimize=[fused_dense_latency_ms]")
    for _ in range(2):  # also where the point is shown again
        with pytest.raises(InvalidSetting, match="^optimize=fused_dense_latency_ms: this run's record has none"):
            run_experiment(config)
