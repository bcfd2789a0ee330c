"""Stored logits of a teacher: computed once, equal to what the teacher says in each step, and never another teacher's."""

import pytest
import torch
from safetensors.torch import load_file
from tiny_files import write_imdb

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

STORED = "recovery.store_teacher=true"


@pytest.fixture
def settings(tmp_path) -> list[str]:
    data = ["dataset=imdb", "dataset.complete=false", "dataset.unlabeled=true", "dataset.group_by_length=true"]
    data += [f"dataset.path={write_imdb(tmp_path / 'imdb')}", "dataset.max_length=16", "measure.sequence_length=16"]
    network = [
        "model=bert",
        "model.size=tiny",
        "pattern=element_wise",
        "trainer=cpu",
        "measure.device=cpu",
        "kernel=none",
    ]
    steps = [
        "recipe.batch_size=8",
        "recipe.epochs=1",
        "recipe.recovery_epochs=null",
        "recipe.recovery_steps=3",
        "trainer.limit_batches=null",
    ]
    return [*data, *network, *steps, "recovery=distill", "control=dense_distilled", f"cache_dir={tmp_path / 'cache'}"]


def folders(tmp_path, stage):
    return sorted((tmp_path / "cache" / stage).glob("[0-9a-f]*"))


def test_stored_logits_train_alike(run, settings, tmp_path):
    for more in ([], [STORED]):
        run(*settings, *more)
    for stage in ("recover", "dense_distilled"):
        plain, stored = (load_file(folder / "weights.safetensors") for folder in folders(tmp_path, stage))
        assert all(torch.allclose(plain[name], stored[name], atol=1e-6) for name in plain)
    run(*settings, STORED, "sparsity=0.5", "schedule=gradual")
    assert len(folders(tmp_path, "teacher")) == 1 and len(folders(tmp_path, "dense_distilled")) == 2
    run(*settings, STORED, "recipe.lr=2e-3")  # other weights have logits of their own
    logits = [load_file(folder / "logits.safetensors")["teacher_logits"] for folder in folders(tmp_path, "teacher")]
    assert len(logits) == 2 and not torch.equal(*logits)
    assert all(one.shape == (31 + 38, 2) and bool(one.isfinite().all()) for one in logits)


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=vit_small", "dataset=digits"),
        ("model=bert", "model.size=tiny", "dataset=squad"),
    ],
)
def test_changing_inputs_are_not_stored(composed, overrides):
    with pytest.raises(InvalidSetting, match="^recovery.store_teacher=True: needs texts with one label each"):
        validate(composed(*overrides, "recovery=distill", STORED))
