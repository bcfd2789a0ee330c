"""Bad input is refused before any training, with its key, its value and what is allowed."""

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.validate import validate

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")

REFUSED = {
    "sparsity 1": (["sparsity=1"], "sparsity=1.0: .*in \\[0, 1\\)"),
    "sparsity negative": (["sparsity=-0.1"], "sparsity=-0.1"),
    "m cannot express": (["pattern=n_m", "pattern.m=4", "sparsity=0.6"], r"pattern\.m=4: .*0\.5.*0\.75"),
    "granularity 0": (["granularity=0"], "^granularity=0: "),
    "granularity text": (["pattern=block_wise", "granularity=4by4"], "^granularity=4by4: "),
    "granularity fits nothing": (
        ["pattern=vector_wise", "granularity=96"],
        r"granularity=96: fits no prunable layer \(blocks\.0\.attn\.q \[256, 256\].*96",
    ),
    "pattern's own granularity": (["pattern.granularity=0"], "^pattern.granularity=0: "),
    "unknown key in a group": (["+pattern.width=3"], r"pattern\.width=3: unknown key; pattern takes granularity"),
    "unknown key at the root": (["+sparsty=0.5"], "sparsty=0.5: unknown key; the root takes sparsity"),
    "wrong type in a group": (["recipe.epochs=many"], r"recipe\.epochs=many: must be a whole number"),
    "batch 0": (["recipe.batch_size=0"], r"recipe\.batch_size=0: must be greater than 0"),
    "measured batch 0": (["measure.batch_size=0"], r"measure\.batch_size=0"),
    "unknown stage": (["stages=[dense,prun]"], "stages=prun: .*dense, prune"),
    "no stage": (["stages=[]"], r"stages=\[\]: names at least one of dense"),
    "unknown leaf": (["optimize=[speed]"], "optimize=speed: .*latency_sparse_ms"),
    "unknown kernel": (["kernel.name=gathered_cuda"], r"kernel\.name=gathered_cuda: .*gathered_triton"),
    "unknown family": (["kernel.family=ellpack"], r"kernel\.family=ellpack: .*gathered"),
    "family of another pattern": (["kernel=sparse", "kernel.family=blocked"], r"kernel\.family=blocked: .*tile_wise"),
    "kernel=none forces nothing": (["kernel=none", "kernel.family=gathered"], r"kernel\.family=gathered"),
    "impossible allocation": (
        ["pattern=n_m", "allocation=global_threshold"],
        "allocation=global_threshold: pattern n_m can meet per_layer",
    ),
    "impossible recovery": (["schedule=gradual", "recovery=none"], "recovery=none: goes with schedule one_shot"),
    "rewind under gradual": (
        ["schedule=gradual", "recovery=lr_rewind"],
        "recovery=lr_rewind: goes with schedule one_shot",
    ),
    "rewind too far": (["recovery=lr_rewind", "recovery.epochs=99"], r"recovery\.epochs=99: .*16 epochs"),
    "model and data": (["model=bert", "model.size=tiny"], "dataset=digits: asks for image_classification; model bert"),
    "missing data": (
        ["model=resnet50", "dataset=cifar10", "dataset.path=/nowhere"],
        r"dataset\.path=/nowhere",
    ),
    "missing model": (
        ["model=bert", "dataset=glue", "model.path=/nowhere", "dataset.path=/nowhere"],
        r"(dataset|model)\.path=/nowhere",
    ),
    "missing checkpoint": (["model.path=/nowhere/weights.safetensors"], r"model\.path=/nowhere"),
    "image size": (["model.patch_size=3"], r"model\.patch_size=3: must divide"),
    "cache that cannot be": (["cache_dir=/proc/sparsefront"], "cache_dir=/proc/sparsefront: cannot be written"),
    "expression": (["recipe.keep_dense=['(']"], r"recipe\.keep_dense=\(: is not a regular expression"),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


NEEDS_GPU = {
    "measure": (["measure.device=cuda"], r"measure\.device=cuda: no CUDA device"),
    "trainer": (["trainer=gpu"], r"trainer\.accelerator=gpu: .*no CUDA device"),
    "dtype": (["measure.dtype=fp16"], r"measure\.dtype=fp16: .*CUDA"),
    "kernel": (
        ["kernel=sparse", "kernel.name=csr_torch", "pattern=element_wise"],
        r"kernel\.name=csr_torch: cannot run",
    ),
}


@WITHOUT_GPU
@pytest.mark.parametrize(("overrides", "message"), NEEDS_GPU.values(), ids=NEEDS_GPU.keys())
def test_a_gpu_that_is_not_there(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


def test_no_recipe_for_a_pair(composed):
    with pytest.raises(InvalidSetting, match="recipe=None: there is no recipe resnet50_digits .*recipe=default"):
        validate(composed("model=resnet50"))


def test_a_checkpoint_of_another_network(composed, tmp_path):
    from safetensors.torch import save_file

    from sparsefront.stages.network import build_net

    save_file({"blocks.0.attn.q.weight": torch.zeros(8, 8)}, tmp_path / "other.safetensors")
    experiment = validate(composed(f"model.path={tmp_path / 'other.safetensors'}"))
    with pytest.raises(InvalidSetting, match=r"model\.path=.*other\.safetensors"):
        build_net(experiment)


def test_patterns_without_a_unit_ignore_granularity_aloud(composed, caplog):
    with caplog.at_level("INFO"):
        validate(composed("pattern=element_wise", "granularity=64"))
    assert "granularity=64: pattern element_wise has no unit and ignores it" in caplog.text


def test_a_recipe_may_keep_every_layer_dense_but_then_nothing_is_left(composed):
    with pytest.raises(InvalidSetting, match=r"fits no prunable layer .*recipe.keep_dense"):
        validate(composed("recipe.keep_dense=[blocks]"))


def test_some_layers_may_stay_dense(composed):
    """With vectors of 512 only fc1, which has 1024 outputs, fits; that is enough."""
    validate(composed("pattern=vector_wise", "granularity=512"))
