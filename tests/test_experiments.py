"""Experiments run from data to row: two batches an epoch, small local data, the smallest model of its kind."""

from pathlib import Path

import pytest
import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from tiny_files import (
    write_cifar,
    write_glue,
    write_imagenet,
    write_imdb,
    write_pairs,
    write_squad,
    write_tiny_imagenet,
)

from experiments.language_models.tiny import make_llama, make_wikitext
from sparsefront.config.validate import validate
from sparsefront.stages.control import control_plan
from sparsefront.stages.keys import stage_keys

EXPERIMENTS = sorted(
    file.stem for file in (Path(__file__).resolve().parent.parent / "conf" / "experiment").glob("*.yaml")
)
# validated, since another experiment runs the same model, data, recovery and kind of masks
ALIKE = {"bert_sst2", "distribution_block_wise", "distribution_element_wise", "distribution_vector_wise", "recoveries"}
ALIKE |= {"nmsparse_bert", "resnet50_cifar10", "search_minilm", "tile_wise_bert"}
ON_CPU = ["trainer=cpu", "measure.device=cpu", "recipe.batch_size=4", "measure.evaluate_limit=8"]
SMALL_MODELS = {  # built, not loaded
    "vit_small": ["model.dim=64", "model.depth=1", "model.heads=2"],
    "huggingface": ["model=bert", "model.size=tiny"],
    "lstm_nmt": ["model.width=32", "measure.sequence_length=6"],
    "transformer_mt": ["model.size=tiny", "measure.sequence_length=8"],
    "vgg16": ["measure.image_size=40", "granularity=16"],
}


def wikitext2(folder: Path) -> list[str]:
    llama = make_llama(folder / "llama", hidden=32)
    return [f"dataset.path={make_wikitext(folder)}", f"model.path={llama}", "dataset.sequence_length=32"]


LOCAL_DATA = {
    "multi30k": lambda folder: [f"dataset.path={write_pairs(folder)}"],
    "wikitext2": wikitext2,
    "glue": lambda folder: [f"dataset.path={write_glue(folder, 'sst2')}", "model.size=tiny"],
    "squad": lambda folder: [
        f"dataset.path={write_squad(folder)}", "model.size=tiny", "dataset.max_length=64", "dataset.stride=16",
    ],
    "cifar10": lambda folder: [f"dataset.path={write_cifar(folder)}", "dataset.image_size=32"],
    "imagenet": lambda folder: [
        f"dataset.path={write_imagenet(folder)}", "dataset.image_size=64", "dataset.num_workers=0",
    ],
    "digits": lambda folder: [],
    "imdb": lambda folder: [f"dataset.path={write_imdb(folder)}", "dataset.complete=false"],
    "tiny_imagenet": lambda folder: [f"dataset.path={write_tiny_imagenet(folder)}", "dataset.complete=false"],
}  # fmt: skip


@pytest.fixture
def small_models(monkeypatch):
    """torchvision's ResNet-50 and ViT-B/16 with few blocks, every kind of block among them, and a narrow VGG-16; tests/models
    builds whole ones.
    """
    import torchvision
    from torchvision.models import resnet, vgg, vision_transformer

    def vit(image_size: int, num_classes: int, **_) -> torch.nn.Module:
        sizes = {"num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}  # of vit_b_16
        return vision_transformer.VisionTransformer(
            image_size=image_size, patch_size=16, num_layers=1, num_classes=num_classes, **sizes
        )

    def resnet50(num_classes: int, **_) -> torch.nn.Module:
        return resnet.ResNet(resnet.Bottleneck, [2, 1, 1, 1], num_classes=num_classes)

    monkeypatch.setitem(torchvision.models._api.BUILTIN_MODELS, "vit_b_16", vit)
    monkeypatch.setattr(torchvision.models, "resnet50", resnet50)
    monkeypatch.setitem(vgg.cfgs, "D", [width if width == "M" else width // 8 for width in vgg.cfgs["D"]])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_gives_a_row(run, composed, tmp_path, small_models, name):
    composed(f"experiment={name}")
    dataset = HydraConfig.get().runtime.choices["dataset"]
    model = SMALL_MODELS.get(HydraConfig.get().runtime.choices["model"], [])
    overrides = [f"experiment={name}", *model, *ON_CPU, *LOCAL_DATA[dataset](tmp_path / "data")]
    if name in ALIKE:
        validate(composed("debug=tiny", *overrides))
        return
    row = run(*overrides)
    assert row.quality.masked is not None and row.quality.sparse == pytest.approx(
        row.quality.masked, abs=0.01, rel=1e-3
    )
    assert row.sparsity.sparsity_achieved > 0
    assert row.speed.timed_image_size == (40 if name == "tile_wise_vgg" else None)


def test_recoveries_are_swept_at_equal_steps(composed):
    """All options of the group; those that train take as many steps, and the presets share one dense network and control."""
    conf = Path(__file__).resolve().parent.parent / "conf"
    preset = yaml.safe_load((conf / "experiment" / "recoveries.yaml").read_text())
    swept = preset["hydra"]["sweeper"]["params"]["recovery"].split(",")
    assert set(swept) == {file.stem for file in (conf / "recovery").glob("*.yaml")}
    points = [validate(composed("experiment=recoveries", f"recovery={recovery}")) for recovery in swept]
    points.append(validate(composed("experiment=recoveries_swaps_finetune")))
    trained = [point for point in points if point.continued_recovery is not None]
    untrained = {point.recovery.name for point in points if point.continued_recovery is None}
    assert untrained == {"none", "obs_update", "least_squares", "sparse_swaps"} and len(trained) == len(points) - 4
    assert {point.continued_recovery.plan(point.recipe, 10).total_steps(10) for point in trained} == {160}
    assert {control_plan(point, 10).steps for point in trained} == {160}
    assert len({str(stage_keys(point).dense) for point in points}) == 1
