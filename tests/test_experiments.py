"""Every experiment runs from data to row: two batches an epoch, small local data, the smallest model of its kind."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_files import write_imdb, write_tiny_imagenet

from experiments.language_models.tiny import make_llama, make_wikitext

EXPERIMENTS = sorted(
    file.stem for file in (Path(__file__).resolve().parent.parent / "conf" / "experiment").glob("*.yaml")
)
ON_CPU = ["trainer=cpu", "measure.device=cpu", "recipe.batch_size=4", "measure.evaluate_limit=8"]
SMALL_MODELS = {  # built, not loaded
    "vit_small": ["model.dim=64", "model.depth=1", "model.heads=2"],
    "huggingface": ["model=bert", "model.size=tiny"],
    "lstm_nmt": ["model.width=32", "measure.sequence_length=6"],
    "transformer_mt": ["model.size=tiny", "measure.sequence_length=8"],
    "vgg16": ["measure.image_size=40", "granularity=16"],
}


def glue(folder: Path) -> list[str]:
    rows = [
        f"the film is {word} and {n} minutes long\t{label}"
        for n in range(20)
        for word, label in (("good", 1), ("bad", 0))
    ]
    (folder / "SST-2").mkdir(parents=True)
    for split in ("train", "dev"):
        (folder / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return [f"dataset.path={folder}", "model.size=tiny"]


def squad(folder: Path) -> list[str]:
    paragraphs = []
    for n in range(12):
        context = f"Paper number {n} was written in the town of Leiden in the year {1600 + n}."
        answer = {"text": str(1600 + n), "answer_start": context.index(str(1600 + n))}
        paragraphs.append(
            {"context": context, "qas": [{"id": f"q{n}", "question": "In which year?", "answers": [answer]}]}
        )
    folder.mkdir()
    for split in ("train-v1.1", "dev-v1.1"):
        content = {"version": "1.1", "data": [{"title": "papers", "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
    return [f"dataset.path={folder}", "model.size=tiny", "dataset.max_length=64", "dataset.stride=16"]


def cifar10(folder: Path) -> list[str]:
    draw = np.random.default_rng(0)
    folder.mkdir()
    parts = {
        f"{letter}_{split}": array
        for split, rows in (("train", 40), ("test", 10))
        for letter, array in (
            ("x", draw.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)),
            ("y", np.arange(rows, dtype=np.uint8) % 10),
        )
    }
    np.savez(folder / "cifar10_subset.npz", **parts)
    return [f"dataset.path={folder}", "dataset.image_size=32"]


def imagenet(folder: Path) -> list[str]:
    from PIL import Image

    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            (folder / split / label).mkdir(parents=True)
            for n in range(8):
                pixels = draw.integers(0, 256, (72, 72, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{n}.png")
    return [f"dataset.path={folder}", "dataset.image_size=64", "dataset.num_workers=0"]


def wikitext2(folder: Path) -> list[str]:
    llama = make_llama(folder / "llama", hidden=32)
    return [f"dataset.path={make_wikitext(folder)}", f"model.path={llama}", "dataset.sequence_length=32"]


def multi30k(folder: Path) -> list[str]:
    folder.mkdir()
    for split, rows in (("train", 40), ("test", 8)):
        for language, text in (("en", "there are {} dogs"), ("de", "da sind {} Hunde")):
            (folder / f"{split}.{language}").write_text("".join(f"{text.format(n)} {split}\n" for n in range(rows)))
    return [f"dataset.path={folder}"]


LOCAL_DATA = {
    "multi30k": multi30k,
    "wikitext2": wikitext2,
    "glue": glue,
    "squad": squad,
    "cifar10": cifar10,
    "imagenet": imagenet,
    "digits": lambda folder: [],
    "imdb": lambda folder: [f"dataset.path={write_imdb(folder)}", "dataset.complete=false"],
    "tiny_imagenet": lambda folder: [f"dataset.path={write_tiny_imagenet(folder)}", "dataset.complete=false"],
}


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
    from hydra.core.hydra_config import HydraConfig

    composed(f"experiment={name}")
    dataset = HydraConfig.get().runtime.choices["dataset"]
    model = SMALL_MODELS.get(HydraConfig.get().runtime.choices["model"], [])
    row = run(f"experiment={name}", *model, *ON_CPU, *LOCAL_DATA[dataset](tmp_path / "data"))
    assert row.quality.masked is not None and row.quality.sparse == pytest.approx(
        row.quality.masked, abs=0.01, rel=1e-3
    )
    assert row.sparsity.sparsity_achieved > 0
    assert row.speed.timed_image_size == (40 if name == "tile_wise_vgg" else None)


def test_recoveries_are_swept_at_equal_steps(composed):
    """All options of the group; those that train take as many steps, and the presets share one dense network and control."""
    import yaml

    from sparsefront.config.validate import validate
    from sparsefront.stages.control import control_plan
    from sparsefront.stages.keys import stage_keys

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
