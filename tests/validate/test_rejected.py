"""Settings that cannot work, alone or together, are rejected before any training, each with what is allowed."""

import importlib.util
from pathlib import Path

import pytest
import torch

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

# Overrides -> the message, as a regular expression.
REJECTED = {
    # allocation
    "pattern=n_m allocation=global_threshold": (
        "allocation=global_threshold: pattern n_m can meet latency_aware, per_layer"
    ),
    "allocation.min_density_share=0.2": (
        r"^allocation\.min_density_share=0\.2: unknown key of allocation=per_layer; choose allocation=global_threshold"
    ),
    "allocation.floor=0.2": r"allocation\.floor=0\.2: unknown key; allocation takes no keys",
    "allocation=global_threshold allocation.min_density_share=2": r"allocation\.min_density_share=2: must be less than",
    "allocation=latency_aware": r"allocation\.table=None: .*run\.py -m sparsity=.*sparsefront\.results\.latency_table",
    "allocation=latency_aware allocation.table=/nowhere.csv": r"allocation\.table=/nowhere\.csv: is no file",
    "pattern=n_m allocation=erk": "allocation=erk: pattern n_m can meet latency_aware, per_layer",
    "pattern=mixed": (
        "^allocation=per_layer: pattern mixed can meet latency_search; per_layer gives every layer the same pattern$"
    ),
    "pattern=n_m allocation=latency_search allocation.speedup=2": (
        "^allocation=latency_search: pattern n_m can meet .*chooses among the candidates of pattern mixed"
    ),
    "pattern=mixed sparsity=0.95 allocation=latency_search": (
        r"^allocation\.latency_ms=None: milliseconds of one batch, or allocation\.speedup"
    ),
    "pattern=mixed allocation=latency_search allocation.speedup=2 allocation.latency_ms=1": (
        r"^allocation\.latency_ms=1.*not with allocation\.speedup"
    ),
    "pattern=mixed sparsity=0.4 allocation=latency_search allocation.speedup=2": (
        r"^sparsity=0\.4: is the ceiling of pattern\.sparsities"
    ),
    "pattern=mixed allocation=latency_search allocation.speedup=2 kernel=none": "^kernel=none: swaps no kernel in",
    "pattern=mixed pattern.candidates=[n_m,tiles] allocation=latency_search allocation.speedup=2": (
        r"^pattern\.candidates=tiles: name=tiles: is no pattern"
    ),
    # keys and types
    "+pattern.width=3": r"pattern\.width=3: unknown key; pattern takes granularity",
    "+pattern.m=4": r"pattern\.m=4: unknown key of pattern=tile_wise; choose .*pattern=n_m or pattern=vector_wise",
    "seed=4294967296": "^seed=4294967296: ",
    # measure and kernel
    "measure.batch_size=[]": r"measure\.batch_size=\[\]: .*at least 1 item",
    "measure.batch_size=[8,-1]": r"measure\.batch_size=\[8, -1\]: ",
    "measure.batch_size=[8,8]": r"measure\.batch_size=\[8, 8\]: names a value twice",
    "measure.sequence_length=[16,32]": r"measure\.sequence_length=\[16, 32\]: images",
    "measure.image_size=16": r"measure\.image_size=16: model vit_small for",
    "model=vgg16 dataset=cifar10 dataset.path=null measure.image_size=16": (
        r"measure\.image_size=16: model vgg16 for images of 32 pixels cannot take these"
    ),
    "measure.mode=decode": r"measure\.mode=decode: generates text: dataset digits asks for image",
    "model=vgg16": r"model\.small_images=False: halves .* 32 pixels .* have 8",
    "measure.parts=[encoder]": r"measure\.parts=.*: is for translation; digits asks for",
    "measure.variants=[fused_mlp]": r"measure\.variants=.*fused_qkv",
    "kernel.name=gathered_fpga": r"kernel\.name=gathered_fpga: .*gathered_triton",
    "kernel.family=ellpack": r"kernel\.family=ellpack: .*gathered",
    "kernel=sparse kernel.family=blocked": r"kernel\.family=blocked: .*tile_wise",
    "pattern=dense kernel=sparse": "kernel=sparse: .*pattern=dense prunes none",
    "measure.repeats=1000000": r"measure\.repeats=1000000: ",
    "dataset.num_workers=100000": r"dataset\.num_workers=100000: ",
    "importance=wanda importance.batches=1000000000": r"importance\.batches=1000000000: ",
    "optimize=[sparse]": "optimize=sparse: is of the reporting split.*val_sparse",
    "optimize=[]": r"optimize=\[\]: ",
    "pattern=element_wise sparsity=0.99999999": r"sparsity=0\.99999999: rounds to empty",
    "sparsity=0.99999999": r"sparsity=0\.99999999: rounds to empty",
    "kernel=none kernel.family=gathered": r"kernel\.family=gathered",
    # model data and recipe
    "recipe.optimizer=sgd recipe.momentum=1": r"^recipe\.momentum=1(\.0)?: must be less than 1",
    "recipe.recovery_lr=1e9": r"^recipe\.recovery_lr=1000000000.*: must be .* or equal to 1000",
    "model=bert model.size=tiny": "dataset=digits: asks for image_classification; model bert",
    "model=resnet50 dataset=cifar10 dataset.path=/nowhere": r"dataset\.path=/nowhere",
    "model=bert dataset=glue model.path=/nowhere dataset.path=/nowhere": r"(dataset|model)\.path=/nowhere",
    "model.path=/nowhere/weights.safetensors": r"model\.path=/nowhere",
    "model.patch_size=3": r"model\.patch_size=3: must divide",
    # schedule and recovery
    "schedule=gradual schedule.initial_sparsity=0.8": (
        r"schedule\.initial_sparsity=0\.8: must be below the final sparsity=0\.75"
    ),
    "recovery=weight_rewind": r"recipe\.save_epoch_weights=False: .*set recipe\.save_epoch_weights=true",
    "recovery=weight_rewind recovery.epochs=17 recipe.save_epoch_weights=true": r"recovery\.epochs=17: .*16 epochs",
    "recovery=distill recovery.teacher=/nowhere/weights.safetensors": (
        r"recovery\.teacher=/nowhere/weights\.safetensors: does not exist"
    ),
    "recovery=distill recovery.hidden_states=1 recovery.hidden_layers=[encoder.layer.0]": (
        r"recovery\.hidden_layers=\['encoder\.layer\.0'\]: not in the network; its blocks are blocks\.0, blocks\.1"
    ),
    "schedule=iterative schedule.levels=[0.25,0.5]": r"schedule\.levels=\[0\.25, 0\.5\]: must end at sparsity=0\.75",
    "schedule=iterative schedule.levels=[0.5,0.25]": r"schedule\.levels=.*must rise",
    "recovery.dense_after=0": r"^recovery\.dense_after=0.*: must be .*greater than 0",
    "recovery.dense_after=1": r"^recovery\.dense_after=1.*: must be .*less than 1",
    "recovery=weight_rewind recipe.save_epoch_weights=true +recovery.dense_after=0.5": r"^recovery\.dense_after",
    "schedule=gradual recovery.dense_after=0.5": r"^recovery\.dense_after=0\.5: .*schedule=one_shot, not of gradual",
    "pattern=depth sparsity=0.5 recovery.dense_after=0.5": (
        r"^recovery\.dense_after=0\.5: .*pattern=depth takes whole blocks out"
    ),
    "pattern=block_wise recovery.backend=auto recovery.dense_after=0.5": (
        r"^recovery\.dense_after=0\.5: .*recovery\.backend=dense, not auto"
    ),
    "kernel=sparse recovery.dense_after=0.5": (
        r"^kernel=sparse: .*recovery\.dense_after leaves a dense network: kernel=auto or none"
    ),
    "precision=int8 recovery.dense_after=0.5": r"^precision=int8: .*recovery\.dense_after leaves a dense network",
    "pattern=mixed allocation=latency_search allocation.speedup=1.5 recovery.dense_after=0.5": (
        r"^allocation=latency_search: .*recovery\.dense_after leaves a dense network"
    ),
    "recovery=lr_rewind recovery.epochs=99": r"recovery\.epochs=99: .*16 epochs",
    # sparsity and pattern
    "pattern=n_m pattern.m=4 sparsity=0.6": r"pattern\.m=4: .*0\.5.*0\.75",
    "pattern=block_2_4 sparsity=0.4": r"^sparsity=0\.4: block_2_4 .*at least 0\.5",
    "pattern.element_overlay=0.1 sparsity=0.9": r"pattern\.element_overlay=0\.1: below 0\.1",
    "pattern=block_wise +pattern.element_overlay=0.05": r"pattern\.element_overlay.*unknown key",
    "pattern=uniform granularity=3": "^granularity=3: 1, 2 or 4",
    "pattern=vector_wise granularity=96": (
        r"granularity=96: fits no prunable layer \(blocks\.0\.attn\.q \[256, 256\].*96"
    ),
    "pattern=n_m pattern.m=12 sparsity=0.5": (
        r"pattern\.m=12: fits no prunable layer \(blocks\.0\.attn\.q \[256, 256\] and \d+ more: inputs 256 are not"
    ),
    "pattern=vector_wise ~pattern.granularity granularity=8": (
        r"^granularity=8: .*conf/pattern/vector_wise\.yaml does not read it: add `granularity: \$\{default:\$\{granularity\},32"
    ),
    "pattern=vector_wise ~pattern.granularity granularity=abc": "^granularity=abc: .* does not read it",
    "recipe.ignore=[fc1,nomatch]": (
        r"^recipe\.ignore=nomatch: finds no layer; there are blocks\.N\.attn\.q, .*blocks\.N\.mlp\.fc2 "
    ),
    # stages and result
    "stages=[dense,prune,recover,export,swap]": (
        r"^stages=\[dense,prune,recover,export,swap\]: .*add measure, or leave swap out; there are dense, prune"
    ),
    "stages=[swap,report]": r"stages=\[swap,report\]: .*add measure",
    "stages=[dense,prune,dense]": r"^stages=\['dense', 'prune', 'dense'\]: names dense more than once",
    "optimize=[speed]": "optimize=speed: .*closest are speedup, speedup_low, speedup_high, .*row.json holds them all$",
}


@pytest.mark.parametrize(("overrides", "message"), REJECTED.items(), ids=REJECTED)
def test_setting_is_rejected_with_its_key(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides.split()))


def write_times(folder: Path, layers: list[str], levels: tuple[float, ...] = (0, 0.5, 0.75)) -> str:
    """The override for a table in which time falls as density does."""
    times = [f"{layer},{level},{8 * (1 - level)}" for layer in layers for level in levels]
    (folder / "table.csv").write_text("\n".join(["layer,sparsity,latency_us", *times]) + "\n")
    return f"allocation.table={folder / 'table.csv'}"


def test_latency_table_without_layers_or_speedup(composed, tmp_path):
    latency_aware = ["pattern=n_m", "sparsity=0.75", "allocation=latency_aware"]
    with pytest.raises(InvalidSetting, match=r"allocation\.table=.*no times of layer blocks\.0\.attn\.q"):
        validate(composed(*latency_aware, write_times(tmp_path, ["fc"])))
    experiment = validate(composed(*latency_aware[:2], "allocation=per_layer"))
    net = experiment.model.skeleton(experiment.dataset.info)
    table = write_times(tmp_path, experiment.model.prunable(net))
    validate(composed(*latency_aware, table, "allocation.speedup=4"))
    with pytest.raises(InvalidSetting, match=r"allocation\.speedup=5(\.0)?: out of reach.*allow 4\.000 at most"):
        validate(composed(*latency_aware, table, "allocation.speedup=5"))
    with pytest.raises(InvalidSetting, match=r"allocation\.speedup=4.*sparsity=0\.5, the ceiling, allow 2\.000"):
        validate(composed("pattern=n_m", "sparsity=0.5", "allocation=latency_aware", table, "allocation.speedup=4"))
    table = write_times(tmp_path, experiment.model.prunable(net), levels=(0, 0.6))
    with pytest.raises(InvalidSetting, match=r"allocation\.table=.*at sparsity 0\.6, which n_m cannot express: m=4: "):
        validate(composed(*latency_aware, "pattern.m=4", table))


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
def test_class_without_name_or_base(composed, own_modules, target, message):
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
def test_class_of_another_group(composed, own_modules, group):
    """Also where the class takes the very keys that the group's YAML gives."""
    keys = [key for key in composed("logger=none")[group] if key != "_target_"]
    own_modules({"foreign_classes.py": EMPTY.format(keys=keys)})
    with pytest.raises(
        InvalidSetting, match=rf"^{group}\._target_=foreign_classes.Foreign: must derive from {BASE[group]}"
    ):
        validate(composed("logger=none", f"{group}._target_=foreign_classes.Foreign"))


@pytest.mark.parametrize("lengths", ["513", "[128,513]"])
def test_texts_longer_than_the_network_takes(composed, tmp_path, lengths):
    (tmp_path / "SST-2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    bert = ["model=bert", "model.size=tiny", "dataset=glue", f"dataset.path={tmp_path}", "trainer=cpu"]
    validate(composed(*bert, "measure.sequence_length=[128,512]"))
    with pytest.raises(InvalidSetting, match=r"measure\.image_size=64: is for images; glue holds text"):
        validate(composed(*bert, "measure.image_size=64"))
    with pytest.raises(InvalidSetting, match=r"measure\.sequence_length=.*513.*model bert takes at most 512 tokens"):
        validate(composed(*bert, f"measure.sequence_length={lengths}"))


NEEDS_GPU = {
    "measure": (["measure.device=cuda"], r"measure\.device=cuda: no CUDA device"),
    "trainer": (["trainer=gpu"], r"trainer\.accelerator=gpu: .*no CUDA device"),
    "precision": (["trainer.precision=16-mixed"], r"trainer\.precision=16-mixed: needs a GPU.*bf16-mixed"),
    "dtype": (["measure.dtype=fp16"], r"measure\.dtype=fp16: .*CUDA"),
    "kernel": (
        ["kernel=sparse", "kernel.name=csr_torch", "pattern=element_wise"],
        r"kernel\.name=csr_torch: cannot run",
    ),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.parametrize(("overrides", "message"), NEEDS_GPU.values(), ids=NEEDS_GPU.keys())
def test_a_gpu_that_is_not_there(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


@pytest.mark.parametrize(
    ("package", "overrides", "message"),
    [
        ("jinja2", [], r"^report\.html=True: .*pip install jinja2, or choose report\.html=false"),
        ("matplotlib", ["report.html=false"], r"^report\.plot=True: .*pip install matplotlib"),
        ("wandb", ["logger=wandb"], r"^logger\.mode=auto: .*pip install wandb, or choose logger=csv or logger=none"),
        (
            "tensorboard",
            ["logger=tensorboard"],
            r"^logger=tensorboard: .*pip install tensorboard, or choose logger=csv",
        ),
    ],
)
def test_missing_package_is_named_first(composed, monkeypatch, package, overrides, message):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))
    validate(composed("report.html=false", "report.plot=false", "logger=none"))
