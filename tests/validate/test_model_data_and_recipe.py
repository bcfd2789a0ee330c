"""Models, datasets and recipes that are not there, or do not go together."""

import pytest
import torch
from tiny_files import write_pairs

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.training.recipe import Recipe

TRANSLATION = {
    "dataset.target=fr": r"^dataset\.target=fr: .* has no train file .* there are de, en",
    "dataset.beam=0": r"^dataset\.beam=0: must be greater than",
    "dataset.batch_tokens=100": r"^dataset\.batch_tokens=100: holds no sentence of max_length",
    "model.max_positions=64": r"^model\.max_positions=64: .* dataset\.max_length=128",
    "measure.sequence_length=2048": r"^measure\.sequence_length=2048: .* at most 1024 tokens",
    "dataset=digits": r"^dataset=digits: asks for image_classification; .* translation",
    "model=vit_small": r"^dataset=multi30k: asks for translation; model vit_small serves image",
    "measure.parts=[decoder]": r"^measure\.parts=.*decoder.*: .*'encoder', 'decoder_step' or 'translation'",
}


@pytest.mark.parametrize(("override", "message"), TRANSLATION.items(), ids=TRANSLATION)
def test_impossible_translation(composed, tmp_path, override, message):
    write_pairs(tmp_path)
    path = [] if override == "dataset=digits" else [f"dataset.path={tmp_path}"]
    with pytest.raises(InvalidSetting, match=message):
        validate(composed("model=transformer_mt", "dataset=multi30k", *path, override))


def test_pair_without_recipe_takes_defaults(composed, caplog):
    with caplog.at_level("INFO"):
        experiment = validate(composed("model=resnet50", "recipe.lr=0.5", "pattern=element_wise"))
    assert experiment.recipe == Recipe(lr=0.5) and experiment.choices["recipe"] == "default"
    assert "there is none named resnet50_digits, so that the values of recipe=default hold" in caplog.text


def test_own_recipe_in_a_package(composed, own_modules):
    own_modules({"own_conf/recipe/resnet50_digits.yaml": "lr: 0.5\n", "own_conf/__init__.py": ""})
    config = composed("hydra.searchpath=[pkg://own_conf]", "model=resnet50", "pattern=element_wise")
    experiment = validate(config)
    assert experiment.choices["recipe"] == "resnet50_digits" and experiment.recipe == Recipe(lr=0.5)


def test_a_checkpoint_of_another_network(composed, tmp_path):
    from safetensors.torch import save_file

    from sparsefront.stages.network import build_net

    save_file({"blocks.0.attn.q.weight": torch.zeros(8, 8)}, tmp_path / "other.safetensors")
    experiment = validate(composed(f"model.path={tmp_path / 'other.safetensors'}"))
    with pytest.raises(InvalidSetting, match=r"model\.path=.*other\.safetensors"):
        build_net(experiment)
