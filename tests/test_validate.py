"""Bad input is rejected before any training, with its key, its value and what is allowed."""

import importlib.util
from pathlib import Path

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.training.recipe import Recipe
from sparsefront.validate import validate

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")

REJECTED = {
    "sparsity 1": (["sparsity=1"], r"sparsity=1.0: must be .* below 1 \(the fraction of zeros\)"),
    "sparsity negative": (["sparsity=-0.1"], "sparsity=-0.1"),
    "m cannot express": (["pattern=n_m", "pattern.m=4", "sparsity=0.6"], r"pattern\.m=4: .*0\.5.*0\.75"),
    "less than 2 of 4": (["pattern=block_2_4", "sparsity=0.4"], r"^sparsity=0\.4: block_2_4 .*at least 0\.5"),
    "tiles without room for the overlay": (
        ["pattern.element_overlay=0.1", "sparsity=0.9"],
        r"pattern\.element_overlay=0\.1: below 0\.1",
    ),
    "overlay on blocks": (
        ["pattern=block_wise", "+pattern.element_overlay=0.05"],
        r"pattern\.element_overlay.*unknown key",
    ),
    "blocks of 3": (["pattern=uniform", "granularity=3"], "^granularity=3: 1, 2 or 4"),
    "granularity 0": (["granularity=0"], "^granularity=0: "),
    "granularity text": (["pattern=block_wise", "granularity=4by4"], "^granularity=4by4: "),
    "granularity fits nothing": (
        ["pattern=vector_wise", "granularity=96"],
        r"granularity=96: fits no prunable layer \(blocks\.0\.attn\.q \[256, 256\].*96",
    ),
    "window that divides no layer": (
        ["pattern=n_m", "pattern.m=12", "sparsity=0.5"],
        r"pattern\.m=12: fits no prunable layer \(blocks\.0\.attn\.q \[256, 256\] and \d+ more: inputs 256 are not",
    ),
    "pattern's own granularity": (["pattern.granularity=0"], "^pattern.granularity=0: "),
    "unknown key in a group": (["+pattern.width=3"], r"pattern\.width=3: unknown key; pattern takes granularity"),
    "unknown key at the root": (["+sparsty=0.5"], "sparsty=0.5: unknown key; the root takes sparsity"),
    "wrong type in a group": (["recipe.epochs=many"], r"recipe\.epochs=many: must be a whole number"),
    "batch 0": (["recipe.batch_size=0"], r"recipe\.batch_size=0: must be a whole number of at least 1"),
    "measured batch 0": (["measure.batch_size=0"], r"measure\.batch_size=0"),
    "no measured batch": (["measure.batch_size=[]"], r"measure\.batch_size=\[\]: .*one or more"),
    "measured batch -1": (["measure.batch_size=[8,-1]"], r"measure\.batch_size=\[8, -1\]: "),
    "measured batch twice": (["measure.batch_size=[8,8]"], r"measure\.batch_size=\[8, 8\]: names a value twice"),
    "measured batch in words": (
        ["measure.batch_size=[8,many]"],
        r"measure\.batch_size=.*must be a whole number of at least 1 or a list",
    ),
    "lengths of images": (["measure.sequence_length=[16,32]"], r"measure\.sequence_length=\[16, 32\]: images"),
    "unknown variant": (["measure.variants=[fused_mlp]"], r"measure\.variants=.*fused_qkv"),
    "unknown stage": (
        ["stages=[dense,prun]"],
        r"stages=\['dense', 'prun'\]: must be a list of one or more names out of dense, prune",
    ),
    "swap without measure": (
        ["stages=[dense,prune,recover,export,swap]"],
        r"^stages=\[dense,prune,recover,export,swap\]: .*add measure, or leave swap out; there are dense, prune",
    ),
    "swap and a record without measure": (["stages=[swap,report]"], r"stages=\[swap,report\]: .*add measure"),
    "no stage": (["stages=[]"], r"stages=\[\]: must be a list of one or more names out of dense"),
    "unknown field": (["optimize=[speed]"], "optimize=speed: .*latency_sparse_ms"),
    "unknown kernel": (["kernel.name=gathered_fpga"], r"kernel\.name=gathered_fpga: .*gathered_triton"),
    "unknown family": (["kernel.family=ellpack"], r"kernel\.family=ellpack: .*gathered"),
    "family of another pattern": (["kernel=sparse", "kernel.family=blocked"], r"kernel\.family=blocked: .*tile_wise"),
    "kernel=none forces nothing": (["kernel=none", "kernel.family=gathered"], r"kernel\.family=gathered"),
    "impossible allocation": (
        ["pattern=n_m", "allocation=global_threshold"],
        "allocation=global_threshold: pattern n_m can meet latency_aware, per_layer",
    ),
    "key of another allocation": (
        ["allocation.min_density_share=0.2"],
        r"^allocation\.min_density_share=0\.2: unknown key of allocation=per_layer; choose allocation=global_threshold",
    ),
    "key of several other options": (
        ["+pattern.m=4"],
        r"pattern\.m=4: unknown key of pattern=tile_wise; choose .*pattern=n_m or pattern=vector_wise",
    ),
    "key of no allocation": (
        ["allocation.floor=0.2"],
        r"allocation\.floor=0\.2: unknown key; allocation takes no keys",
    ),
    "renamed key": (
        ["allocation=global_threshold", "allocation.min_density=0.1"],
        r"^allocation\.min_density=0\.1: .*allocation\.min_density_share",
    ),
    "renamed key beside the default": (
        ["allocation.min_density=0.1"],
        r"^allocation\.min_density=0\.1: .*allocation=global_threshold allocation\.min_density_share=",
    ),
    "renamed key of a user's own YAML": (
        ["+recipe.keep_dense=[attn]"],
        r"^recipe\.keep_dense=\['attn'\]: is recipe\.ignore now$",
    ),
    "renamed key of measure": (
        ["+measure.wrappings=[eager]"],
        r"^measure\.wrappings=\['eager'\]: is measure\.execution_modes now$",
    ),
    "renamed field": (["optimize=[kernel]"], r"^optimize=kernel: is sparse now$"),
    "share above 1": (
        ["allocation=global_threshold", "allocation.min_density_share=2"],
        r"allocation\.min_density_share=2: must be a number from 0 to 1 \(of the target density\)",
    ),
    "latency_aware without a table": (
        ["allocation=latency_aware"],
        r"allocation\.table=None: .*run\.py -m sparsity=.*sparsefront\.report\.latency_table",
    ),
    "latency_aware with a table that is not there": (
        ["allocation=latency_aware", "allocation.table=/nowhere.csv"],
        r"allocation\.table=/nowhere\.csv: is no file",
    ),
    "latency_aware without a speedup": (["allocation=latency_aware", "allocation.speedup=1"], r"allocation\.speedup=1"),
    "erk with windows": (
        ["pattern=n_m", "allocation=erk"],
        "allocation=erk: pattern n_m can meet latency_aware, per_layer",
    ),
    "several patterns under an allocation of one": (
        ["pattern=mixed"],
        "^allocation=per_layer: pattern mixed can meet latency_search; per_layer gives every layer the same pattern$",
    ),
    "a search among one pattern": (
        ["pattern=n_m", "allocation=latency_search", "allocation.speedup=2"],
        "^allocation=latency_search: pattern n_m can meet .*chooses among the candidates of pattern mixed",
    ),
    "a search without a latency": (
        ["pattern=mixed", "sparsity=0.95", "allocation=latency_search"],
        r"^allocation\.latency_ms=None: milliseconds of one batch, or allocation\.speedup",
    ),
    "a search for two latencies": (
        ["pattern=mixed", "allocation=latency_search", "allocation.speedup=2", "allocation.latency_ms=1"],
        r"^allocation\.latency_ms=1.*not with allocation\.speedup",
    ),
    "a search under a ceiling below all levels": (
        ["pattern=mixed", "sparsity=0.4", "allocation=latency_search", "allocation.speedup=2"],
        r"^sparsity=0\.4: is the ceiling of pattern\.sparsities",
    ),
    "a search that swaps nothing in": (
        ["pattern=mixed", "allocation=latency_search", "allocation.speedup=2", "kernel=none"],
        "^kernel=none: swaps no kernel in",
    ),
    "candidate that is none": (
        ["pattern=mixed", "pattern.candidates=[n_m,tiles]", "allocation=latency_search", "allocation.speedup=2"],
        r"^pattern\.candidates=tiles: name=tiles: is no pattern",
    ),
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
    "seed negative": (["seed=-1"], r"^seed=-1: must be a whole number from 0 to 4294967295"),
    "seed beyond 32 bits": (["seed=4294967296"], r"^seed=4294967296: "),
    "rate that is no number": (["recipe.lr=nan"], r"^recipe\.lr=nan: must be a finite number"),
    "rate without end": (["recovery.lr=inf"], r"^recovery\.lr=inf: must be a finite number"),
    "time without end": (["measure.search_seconds=inf"], r"^measure\.search_seconds=inf: must be a finite number"),
    "class of nowhere": (["pattern._target_=nowhere.Striped"], r"^pattern\._target_=nowhere\.Striped: .*'nowhere'"),
    "interpolation of nowhere": (["recipe.lr=${nowhere}"], r"^recipe\.lr=\${nowhere}: Interpolation key 'nowhere'"),
    "cache without a name": (["cache_dir="], "^cache_dir=: names no folder"),
    "cache that cannot be": (["cache_dir=/proc/sparsefront"], "cache_dir=/proc/sparsefront: cannot be written"),
    "expression that finds nothing": (
        ["recipe.ignore=[fc1,nomatch]"],
        r"^recipe\.ignore=nomatch: finds no layer; there are blocks\.N\.attn\.q, .*blocks\.N\.mlp\.fc2 ",
    ),
    "expression": (["recipe.ignore=['(']"], r"recipe\.ignore=\(: is not a regular expression"),
}


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
    "sparse_swaps": (["pattern=n_m"], {"one_shot", "iterative"}),
    "cast": (["pattern=n_m"], {"one_shot"}),
    "sr_ste": (["pattern=n_m"], {"one_shot"}),
}


def options(group: str) -> set[str]:
    return {file.stem for file in (Path(__file__).parent.parent / "conf" / group).glob("*.yaml")}


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


@pytest.mark.parametrize("lengths", ["513", "[128,513]"])
def test_texts_longer_than_the_network_takes(composed, tmp_path, lengths):
    (tmp_path / "SST-2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    bert = ["model=bert", "model.size=tiny", "dataset=glue", f"dataset.path={tmp_path}", "trainer=cpu"]
    validate(composed(*bert, "measure.sequence_length=[128,512]"))
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


@WITHOUT_GPU
@pytest.mark.parametrize(("overrides", "message"), NEEDS_GPU.values(), ids=NEEDS_GPU.keys())
def test_a_gpu_that_is_not_there(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))


def test_a_pair_without_a_recipe_takes_the_default_values(composed, caplog):
    with caplog.at_level("INFO"):
        experiment = validate(composed("model=resnet50", "recipe.lr=0.5", "pattern=element_wise"))
    assert experiment.recipe == Recipe(lr=0.5) and experiment.choices["recipe"] == "default"
    assert "there is none named resnet50_digits, so that the values of recipe=default hold" in caplog.text


def test_a_pair_with_a_recipe_takes_it_silently(composed, caplog):
    with caplog.at_level("INFO"):
        experiment = validate(composed())
    assert experiment.choices["recipe"] == "vit_small_digits" and "recipe" not in caplog.text
    assert experiment.recipe == Recipe(batch_size=64, epochs=16, recovery_epochs=6, weight_decay=0.05, decay="cosine")


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


def test_a_recipe_of_the_users_own_is_found_in_a_package_too(composed, own_modules):
    own_modules({"own_conf/recipe/resnet50_digits.yaml": "lr: 0.5\n", "own_conf/__init__.py": ""})
    config = composed("hydra.searchpath=[pkg://own_conf]", "model=resnet50", "pattern=element_wise")
    experiment = validate(config)
    assert experiment.choices["recipe"] == "resnet50_digits" and experiment.recipe == Recipe(lr=0.5)


def test_a_recipe_that_does_not_exist(composed):
    with pytest.raises(InvalidSetting, match="recipe=nope: there are .*resnet50_cifar10.*vit_small_digits"):
        validate(composed("recipe=nope"))


def test_a_checkpoint_of_another_network(composed, tmp_path):
    from safetensors.torch import save_file

    from sparsefront.stages.network import build_net

    save_file({"blocks.0.attn.q.weight": torch.zeros(8, 8)}, tmp_path / "other.safetensors")
    experiment = validate(composed(f"model.path={tmp_path / 'other.safetensors'}"))
    with pytest.raises(InvalidSetting, match=r"model\.path=.*other\.safetensors"):
        build_net(experiment)


def test_a_teacher_of_another_network(composed, tmp_path):
    from safetensors.torch import save_file

    file = tmp_path / "teacher.safetensors"
    save_file({"blocks.0.attn.q.weight": torch.zeros(8, 8)}, file)
    with pytest.raises(
        InvalidSetting, match=r"recovery\.teacher=.*does not fit.*missing keys.*\[8, 8\] for \[256, 256\]"
    ):
        validate(composed("recovery=distill", f"recovery.teacher={file}"))


def test_patterns_without_a_group_size_say_that_they_ignore_granularity(composed, caplog):
    with caplog.at_level("INFO"):
        validate(composed("pattern=element_wise", "granularity=64"))
    assert "granularity=64: pattern element_wise has no group size and ignores it" in caplog.text


def test_a_recipe_may_keep_every_layer_dense_but_then_nothing_is_left(composed):
    with pytest.raises(InvalidSetting, match=r"^recipe\.ignore=\[attn,mlp\]: keeps all 24 prunable layers dense"):
        validate(composed("recipe.ignore=[attn,mlp]"))


def test_what_does_not_fit_beside_ignored_layers_is_reported_by_its_own_key(composed):
    with pytest.raises(InvalidSetting, match=r"^granularity=96: fits no prunable layer .*recipe.ignore: attn"):
        validate(composed("pattern=vector_wise", "granularity=96", "recipe.ignore=[attn]"))


@pytest.mark.parametrize(
    ("package", "overrides", "message"),
    [
        ("jinja2", [], r"^report\.html=True: .*pip install jinja2, or choose report\.html=false"),
        ("matplotlib", ["report.html=false"], r"^report\.plot=True: .*pip install matplotlib"),
        ("wandb", ["logger=wandb"], r"^logger\.mode=auto: .*pip install wandb, or choose logger=csv or logger=none"),
    ],
)
def test_a_package_that_is_needed_last_is_missed_first(composed, monkeypatch, package, overrides, message):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides))
    validate(composed("report.html=false", "report.plot=false", "logger=none"))


def test_a_recipe_may_name_layers_that_are_never_pruned(composed):
    validate(composed("recipe.ignore=[head,patch_embed]"))


def test_some_layers_may_stay_dense(composed):
    """With vectors of 512 only fc1, which has 1024 outputs, fits; that is enough."""
    validate(composed("pattern=vector_wise", "granularity=512"))


def write_times(folder: Path, layers: list[str], levels: tuple[float, ...] = (0, 0.5, 0.75)) -> str:
    """The override for a table in which time falls as density does."""
    times = [f"{layer},{level},{8 * (1 - level)}" for layer in layers for level in levels]
    (folder / "table.csv").write_text("\n".join(["layer,sparsity,latency_us", *times]) + "\n")
    return f"allocation.table={folder / 'table.csv'}"


def test_a_table_of_other_layers_and_a_speedup_out_of_reach(composed, tmp_path):
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
