"""Which schedules a recovery goes with, and settings of both that cannot be."""

from pathlib import Path

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

REJECTED = {
    "masks that would have to loosen": (
        ["schedule=gradual", "schedule.initial_sparsity=0.8"],
        r"schedule\.initial_sparsity=0\.8: must be below the final sparsity=0\.75",
    ),
    "weights rewound without epoch weights": (
        ["recovery=weight_rewind"],
        r"recipe\.save_epoch_weights=False: .*set recipe\.save_epoch_weights=true",
    ),
    "weights rewound too far": (
        ["recovery=weight_rewind", "recovery.epochs=17", "recipe.save_epoch_weights=true"],
        r"recovery\.epochs=17: .*16 epochs",
    ),
    "a teacher that is not there": (
        ["recovery=distill", "recovery.teacher=/nowhere/weights.safetensors"],
        r"recovery\.teacher=/nowhere/weights\.safetensors: does not exist",
    ),
    "hidden layers of another network": (
        ["recovery=distill", "recovery.hidden_states=1", "recovery.hidden_layers=[encoder.layer.0]"],
        r"recovery\.hidden_layers=\['encoder\.layer\.0'\]: not in the network; its blocks are blocks\.0, blocks\.1",
    ),
    "a teacher with more than all weight": (["recovery=distill", "recovery.hardness=2"], r"recovery\.hardness=2"),
    "rounds that end elsewhere": (
        ["schedule=iterative", "schedule.levels=[0.25,0.5]"],
        r"schedule\.levels=\[0\.25, 0\.5\]: must end at sparsity=0\.75",
    ),
    "rounds that fall": (["schedule=iterative", "schedule.levels=[0.5,0.25]"], r"schedule\.levels=.*must rise"),
    "masks lifted before the start": (
        ["recovery.dense_after=0"],
        r"^recovery\.dense_after=0.*: must be .*greater than 0",
    ),
    "masks lifted at the end": (["recovery.dense_after=1"], r"^recovery\.dense_after=1.*: must be .*below 1"),
    "masks lifted by what has none to hold": (
        ["recovery=weight_rewind", "recipe.save_epoch_weights=true", "+recovery.dense_after=0.5"],
        r"^recovery\.dense_after",
    ),
    "masks lifted in rounds": (
        ["schedule=gradual", "recovery.dense_after=0.5"],
        r"^recovery\.dense_after=0\.5: .*schedule=one_shot, not of gradual",
    ),
    "blocks that do not come back": (
        ["pattern=depth", "sparsity=0.5", "recovery.dense_after=0.5"],
        r"^recovery\.dense_after=0\.5: .*pattern=depth takes whole blocks out",
    ),
    "kept weights alone, then all": (
        ["pattern=block_wise", "recovery.backend=auto", "recovery.dense_after=0.5"],
        r"^recovery\.dense_after=0\.5: .*recovery\.backend=dense, not auto",
    ),
    "kernels for lifted masks": (
        ["kernel=sparse", "recovery.dense_after=0.5"],
        r"^kernel=sparse: .*recovery\.dense_after leaves a dense network: kernel=auto or none",
    ),
    "a low precision of lifted masks": (
        ["precision=int8", "recovery.dense_after=0.5"],
        r"^precision=int8: .*recovery\.dense_after leaves a dense network",
    ),
    "a search for lifted masks": (
        ["pattern=mixed", "allocation=latency_search", "allocation.speedup=1.5", "recovery.dense_after=0.5"],
        r"^allocation=latency_search: .*recovery\.dense_after leaves a dense network",
    ),
    "rewind too far": (["recovery=lr_rewind", "recovery.epochs=99"], r"recovery\.epochs=99: .*16 epochs"),
}


@pytest.mark.parametrize("recovery", ["finetune", "distill", "square_head", "cast", "sr_ste", "sparse_swaps"])
def test_a_rate_at_which_nothing_converges(composed, recovery):
    along = ["recovery.along=finetune"] if recovery == "sparse_swaps" else []
    with pytest.raises(InvalidSetting, match=r"^recovery\.lr=1001.*: must be .* at most 1000 or null"):
        validate(composed("pattern=n_m", f"recovery={recovery}", *along, "recovery.lr=1001"))


@pytest.mark.parametrize(("overrides", "message"), REJECTED.values(), ids=REJECTED.keys())
def test_rejected_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


# Every schedule by every recovery, as design and README have it: what the recovery needs besides, and the schedules that
# it goes with.
GOES_WITH = {
    "none": ([], {"one_shot"}),
    "finetune": ([], {"one_shot", "iterative", "gradual"}),
    "lr_rewind": ([], {"one_shot", "iterative"}),
    "weight_rewind": (["recipe.save_epoch_weights=true"], {"one_shot", "iterative"}),
    "distill": ([], {"one_shot", "iterative", "gradual"}),
    "distill recovery.along=lr_rewind": ([], {"one_shot", "iterative"}),
    "square_head": ([], {"one_shot", "iterative", "gradual"}),
    "square_head recovery.along=lr_rewind": ([], {"one_shot", "iterative"}),
    "obs_update": ([], {"one_shot", "iterative"}),
    "least_squares": ([], {"one_shot", "iterative"}),
    "sparse_swaps": (["pattern=n_m"], {"one_shot", "iterative"}),
    "cast": (["pattern=n_m"], {"one_shot"}),
    "sr_ste": (["pattern=n_m"], {"one_shot"}),
}


def options(group: str) -> set[str]:
    return {file.stem for file in (Path(__file__).parents[2] / "conf" / group).glob("*.yaml")}


def test_the_table_has_every_schedule_and_recovery():
    assert {recovery.split()[0] for recovery in GOES_WITH} == options("recovery")
    assert set.union(*(schedules for _, schedules in GOES_WITH.values())) == options("schedule")


@pytest.mark.parametrize("schedule", ["one_shot", "iterative", "gradual"])
@pytest.mark.parametrize("recovery", GOES_WITH)
def test_schedule_by_recovery(composed, schedule, recovery):
    needs, schedules = GOES_WITH[recovery]
    config = composed(f"schedule={schedule}", *f"recovery={recovery}".split(), *needs)
    if schedule in schedules:
        assert validate(config).recovery.name == recovery.split()[0]
        return
    with pytest.raises(InvalidSetting) as rejected:
        validate(config)
    message, ruling_out = str(rejected.value), f"recovery={recovery}".split()[-1]
    assert message.startswith(f"{ruling_out}: ") and message.endswith(f"not with {schedule}")
    assert all(name in message.partition(", not with ")[0] for name in schedules), "what is allowed is named"


def test_a_teacher_of_another_network(composed, tmp_path):
    from safetensors.torch import save_file

    file = tmp_path / "teacher.safetensors"
    save_file({"blocks.0.attn.q.weight": torch.zeros(8, 8)}, file)
    with pytest.raises(
        InvalidSetting, match=r"recovery\.teacher=.*does not fit.*missing keys.*\[8, 8\] for \[256, 256\]"
    ):
        validate(composed("recovery=distill", f"recovery.teacher={file}"))
