"""Which stages a change of a setting or a source makes again: those that depend on it, and no others."""

import importlib.metadata
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import sparsefront_kernels
from tiny_files import write_glue, write_imagenet

import sparsefront
from sparsefront.artifacts.content_digest import digest
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.stages.keys import stage_keys

ON_CPU = ("trainer=cpu", "measure.device=cpu", "control=dense_continued")
# a stage, and all that come after it
FROM_MEASURE = {"measure", "result"}
FROM_SWAP = {"swap"} | FROM_MEASURE
FROM_EXPORT = {"export"} | FROM_SWAP
FROM_RECOVER = {"recover"} | FROM_EXPORT
FROM_PRUNE = {"prune"} | FROM_RECOVER
QUALITY = {"dense_quality", "control_quality"}
CONTROL = {"control", "control_quality"}
ALL = {"dense"} | QUALITY | CONTROL | FROM_PRUNE
CHANGES = {
    "seed=1": ALL,
    "model.dim=128": ALL,
    "dataset.shift=1": ALL,
    "recipe.lr=2e-3": ALL,
    "trainer.limit_batches=2": ALL,
    "sparsity=0.5": FROM_PRUNE,
    "granularity=64": FROM_PRUNE,
    "importance=taylor": FROM_PRUNE,
    "importance.norm=l2": FROM_PRUNE,
    "allocation=global_threshold": FROM_PRUNE,
    "schedule=gradual": FROM_PRUNE,
    "model.prune_head=true": FROM_PRUNE,
    "recipe.ignore=[attn]": FROM_PRUNE,
    "schedule=iterative": FROM_PRUNE,
    "recipe.save_epoch_weights=true": ALL,
    "recovery=lr_rewind": CONTROL | FROM_RECOVER,
    "recovery=distill": FROM_RECOVER,
    "recovery.epochs=1": CONTROL | FROM_RECOVER,
    "recovery.quantize=true": FROM_RECOVER,
    "recovery.backend=auto": FROM_RECOVER,
    "recovery.dense_after=0.5": FROM_RECOVER,
    "recipe.recovery_epochs=2": CONTROL | FROM_RECOVER,
    "recipe.recovery_epochs=null recipe.recovery_steps=2": CONTROL | FROM_RECOVER,
    "kernel=reference": FROM_SWAP,
    "precision=fp8": FROM_SWAP,
    "precision=fp8_static": FROM_SWAP,
    "precision=int8": FROM_SWAP,
    "measure.dense_low=[fp8,int8]": FROM_MEASURE,
    "measure.samples=20": FROM_MEASURE,
    "measure.batch_size=8": QUALITY | FROM_SWAP,
    "measure.batch_size=[32,8]": FROM_SWAP,  # the first, at which accuracy is measured, is as it was
    "measure.autotune_seconds=5": FROM_MEASURE,
    "measure.image_size=8": FROM_SWAP,
    "measure.dtype=bf16": QUALITY | FROM_SWAP,
    "measure.evaluate_limit=10": QUALITY | FROM_MEASURE,
    "kernel=none": FROM_SWAP,
    "trainer.progress_bar=false": set(),
    "dataset.num_workers=1": set(),
    "report.plot=false": set(),
    "report.mask_pictures=true": set(),
    "logger=csv": set(),
    "reuse=false": set(),
}


def digests(config) -> dict[str, str]:
    return {stage: digest(content) for stage, content in asdict(stage_keys(validate(config))).items()}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {stage for stage in before if before[stage] != after[stage]}


@pytest.fixture(scope="module")
def computed() -> dict[str, str]:
    return {}


@pytest.fixture
def unedited(composed, computed) -> dict[str, str]:
    """Digests of the default settings and of the sources as they are, computed once."""
    if not computed:
        computed |= digests(composed(*ON_CPU))
    return computed


@pytest.mark.parametrize("change", CHANGES)
def test_setting_changes_its_dependents(composed, unedited, change):
    assert changed(unedited, digests(composed(*ON_CPU, *change.split()))) == CHANGES[change]


def test_kernels_left_out_change_measurements(composed, unedited, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS", "triton")
    assert changed(unedited, digests(composed(*ON_CPU))) == {"swap"} | FROM_MEASURE
    monkeypatch.setenv("SPARSEFRONT_KERNELS", "cuda")
    with pytest.raises(InvalidSetting, match="^SPARSEFRONT_KERNELS=cuda: is triton, or unset for all kernels$"):
        digests(composed(*ON_CPU))


TEXT = ("model=bert", "model.size=tiny", "dataset=glue")
PHOTOGRAPHS = ("model=torchvision", "dataset=imagenet")


@pytest.mark.parametrize(
    ("library", "settings", "expected"),
    [
        ("torchmetrics", (), QUALITY | FROM_MEASURE),
        ("tokenizers", TEXT, ALL),
        ("tokenizers", PHOTOGRAPHS, set()),
        ("pillow", PHOTOGRAPHS, ALL),
        ("pillow", TEXT, set()),
        ("pillow", (), set()),
    ],
)
def test_a_library_changes_what_it_computes(composed, tmp_path, monkeypatch, library, settings, expected):
    write = {TEXT: partial(write_glue, task="sst2"), PHOTOGRAPHS: write_imagenet}.get(settings)
    data = [] if write is None else [f"dataset.path={write(tmp_path / 'data')}"]
    overrides = [*ON_CPU, *settings, *data]
    before, installed = digests(composed(*overrides)), importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == library else installed(name))
    after = digests(composed(*overrides))
    assert changed(before, after) == expected


KERNELS, SPARSEFRONT = (Path(package.__file__).parent for package in (sparsefront_kernels, sparsefront))

ADDED = ("\n\n\n", "\n\nADDED = 1\n\n\n")  # after the imports, or between two definitions
EDITS = {
    # file, what is replaced, by what, what is made again
    "a CUDA source": (KERNELS / "gathered/csrc/gathered_sm90_cluster.cu", "}", "; }", FROM_SWAP),
    "a header": (KERNELS / "cuda/hopper.cuh", "}", "; }", FROM_SWAP),
    "the table of launches": (KERNELS / "tuning/shipped/nvidia_h200.json", '"block_m"', '"block_n"', FROM_SWAP),
    "a Triton kernel": (KERNELS / "blocked/triton_spmm.py", *ADDED, FROM_SWAP),
    "a format": (KERNELS / "gathered/format.py", *ADDED, FROM_EXPORT),
    "the pattern": (SPARSEFRONT / "patterns/tile_wise.py", *ADDED, FROM_PRUNE),
    "the order of a weight's columns": (SPARSEFRONT / "masks/weight_view.py", *ADDED, CONTROL | FROM_PRUNE),
    "the recovery": (SPARSEFRONT / "recovery/finetune.py", *ADDED, FROM_RECOVER),
    "the model": (SPARSEFRONT / "models/vit_small.py", *ADDED, ALL),
    "the timer": (SPARSEFRONT / "measure/end_to_end.py", *ADDED, FROM_SWAP),
    "our fused graph": (SPARSEFRONT / "inference/fusion/block_pass.py", *ADDED, FROM_SWAP),
    "the result": (SPARSEFRONT / "results/record.py", *ADDED, {"result"}),
}
WITHOUT_EFFECT = {
    # file, what is replaced, by what
    "the predicted latencies": (KERNELS / "performance_model/measurements/shipped/nvidia_h200.json", '"', ' "'),
    "the kernels' benchmark": (KERNELS / "bench/run.py", *ADDED),
    "another pattern": (SPARSEFRONT / "patterns/vector_wise.py", *ADDED),
    "another importance": (SPARSEFRONT / "importance/taylor.py", *ADDED),
    "another recovery": (SPARSEFRONT / "recovery/distill.py", *ADDED),
    "another model": (SPARSEFRONT / "models/resnet50.py", *ADDED),
    "another dataset": (SPARSEFRONT / "data/squad.py", *ADDED),
    "the page": (SPARSEFRONT / "results/page/run.py", *ADDED),
    "the store": (SPARSEFRONT / "artifacts/store.py", *ADDED),
    "a comment in CUDA": (KERNELS / "gathered/csrc/gathered_sm90_cluster.cu", "// ", "// no longer "),
    "a comment in Python": (SPARSEFRONT / "models/vit_small.py", "  # [B", "  # of [B"),
    "a docstring": (SPARSEFRONT / "patterns/tile_wise.py", '"""', '"""(Revised) '),
    "blank lines": (SPARSEFRONT / "training/fit.py", "\n\n", "\n\n\n"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edit_changes_its_dependents(composed, unedited, edit, name):
    file, old, new, expected = EDITS[name]
    edit(file, old, new)
    assert changed(unedited, digests(composed(*ON_CPU))) == expected


def test_edits_without_effect_change_nothing(composed, unedited, edit):
    """All at once: the digests are the unedited ones only where none of them counts."""
    for change in WITHOUT_EFFECT.values():
        edit(*change)
    assert changed(unedited, digests(composed(*ON_CPU))) == set()


PATTERN = '''"""A user's pattern."""
from dataclasses import dataclass
from sparsefront.patterns.block_wise import BlockWise
from {helper} import SCALE  # of the scores

@dataclass(frozen=True)
class Mine(BlockWise):
    table: str | None = None
'''
MODEL = """
from dataclasses import dataclass
from sparsefront.models.vit_small import VitSmall

@dataclass(frozen=True)
class Mine(VitSmall):
    drop: float = 0.0
    stem: str | None = None
"""


def test_own_code_counts_with_its_imports(composed, own_modules):
    """Named by a package that re-exports it. A new option, or one beside it, changes no key."""
    folder = own_modules(
        {
            "mine/__init__.py": "from mine.pattern import Mine\nfrom mine.others import Other\n",
            "mine/pattern.py": PATTERN.format(helper=".deep.scores"),
            "mine/deep/__init__.py": "",
            "mine/deep/scores.py": "SCALE = 1\n",
            "mine/others.py": "class Other: ...\n",
        }
    )
    user = [*ON_CPU, "pattern=block_wise", "pattern._target_=mine.Mine"]
    own = (folder / "mine/pattern.py").read_text()
    before = digests(composed(*user))
    for file, content, expected in (
        ("mine/pattern.py", own.replace("A user's", "My own").replace("# of the scores", "# of all"), set()),
        ("mine/new_pattern.py", own, set()),
        ("mine/others.py", "class Other: size = 1\n", set()),
        ("mine/pattern.py", own + "    def extra(self): ...\n", FROM_PRUNE),
        ("mine/deep/scores.py", "SCALE = 2\n", FROM_PRUNE),
        ("mine/search.cu", "int best;\n", FROM_PRUNE),
    ):
        own_modules({file: content})
        after = digests(composed(*user))
        assert changed(before, after) == expected, file
        before = after


def test_a_table_counts_by_its_content(composed, own_modules, tmp_path):
    own_modules({"my_pattern.py": PATTERN.format(helper="my_scores"), "my_scores.py": "SCALE = 1\n"})
    user = [*ON_CPU, "pattern=block_wise", "pattern._target_=my_pattern.Mine"]
    table = tmp_path / "table.csv"
    table.write_text("1\n")
    experiment = validate(composed(*user, f"+pattern.table={table}"))
    assert str(tmp_path) not in str(asdict(stage_keys(experiment)))
    before = digests(composed(*user, f"+pattern.table={table}"))
    moved = table.rename(tmp_path / "moved.csv")
    assert digests(composed(*user, f"+pattern.table={moved}")) == before
    moved.write_text("2\n")
    assert changed(before, digests(composed(*user, f"+pattern.table={moved}"))) == FROM_PRUNE


def test_class_without_a_file(composed, own_modules):
    own_modules({"my_model.py": MODEL + "Mine.__module__ = 'nowhere'\n"})
    with pytest.raises(InvalidSetting, match="model._target_=nowhere.Mine: must be a class in a file"):
        stage_keys(validate(composed(*ON_CPU, "model._target_=my_model.Mine")))
