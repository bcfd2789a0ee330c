"""Which schedules a recovery goes with, and settings of both that cannot be."""

from pathlib import Path

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

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


def test_table_is_complete():
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
