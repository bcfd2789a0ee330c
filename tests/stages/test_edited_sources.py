"""Which stages an edited source makes again: those that it can change, and no others."""

from dataclasses import asdict
from pathlib import Path

import pytest
import sparsefront_kernels
from stages_from import ALL, FROM_EXPORT, FROM_MEASURE, FROM_PRUNE, FROM_RECOVER, FROM_SWAP

import sparsefront
from sparsefront.artifacts.content_digest import digest
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.stages.keys import stage_keys

KERNELS, SPARSEFRONT = (Path(package.__file__).parent for package in (sparsefront_kernels, sparsefront))
ON_CPU = ("trainer=cpu", "measure.device=cpu")

ADDED = ("\n\n\n", "\n\nADDED = 1\n\n\n")  # after the imports, or between two definitions
EDITS = {
    # file, what is replaced, by what, what is made again
    "a CUDA source": (KERNELS / "gathered/csrc/gathered_sm90_cluster.cu", "}", "; }", FROM_SWAP),
    "a header": (KERNELS / "cuda/hopper.cuh", "}", "; }", FROM_SWAP),
    "the table of launches": (KERNELS / "tuning/shipped/nvidia_h200.json", '"block_m"', '"block_n"', FROM_SWAP),
    "a Triton kernel": (KERNELS / "blocked/triton_spmm.py", *ADDED, FROM_SWAP),
    "a format": (KERNELS / "gathered/format.py", *ADDED, FROM_EXPORT),
    "the cost of a launch": (KERNELS / "performance_model/launch_costs.py", *ADDED, FROM_SWAP),
    "the rates of a GPU": (KERNELS / "performance_model/shipped/nvidia_h200.json", '"', ' "', FROM_SWAP),
    "the pattern": (SPARSEFRONT / "patterns/tile_wise.py", *ADDED, FROM_PRUNE),
    "what the pattern imports": (SPARSEFRONT / "patterns/tile_steps.py", *ADDED, FROM_PRUNE),
    "the order of a weight's columns": (SPARSEFRONT / "masks/weight_view.py", *ADDED, FROM_PRUNE),
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


def digests(config) -> dict[str, str]:
    return {stage: digest(content) for stage, content in asdict(stage_keys(validate(config))).items()}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {stage for stage in before if before[stage] != after[stage]}


@pytest.fixture(scope="module")
def unedited() -> dict[str, str]:
    """Digests of the sources as they are, filled in by the first test that asks."""
    return {}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_makes_anew_what_it_can_change(composed, edit, unedited, name):
    file, old, new, expected = EDITS[name]
    if not unedited:
        unedited |= digests(composed(*ON_CPU))
    edit(file, old, new)
    assert changed(unedited, digests(composed(*ON_CPU))) == expected


def test_edits_that_can_change_nothing_make_nothing_anew(composed, edit, unedited):
    """All at once: the digests are the unedited ones only where none of them counts."""
    if not unedited:
        unedited |= digests(composed(*ON_CPU))
    for change in WITHOUT_EFFECT.values():
        edit(*change)
    assert changed(unedited, digests(composed(*ON_CPU))) == set()


def test_dense_is_timed_anew_where_kernels_change(composed, edit):
    """Our own fused graph is one of the candidates for the fastest dense version."""
    before = digests(composed(*ON_CPU, "pattern=dense"))
    edit(*EDITS["a CUDA source"][:3])
    assert changed(before, digests(composed(*ON_CPU, "pattern=dense"))) >= FROM_MEASURE
    assert changed(before, digests(composed(*ON_CPU, "pattern=dense"))).isdisjoint({"dense", "dense_quality", "export"})


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
PLACES = {
    "a single module": ("my_pattern.py", "my_scores.py", "my_pattern.Mine", "my_scores"),
    "a package": ("mine/pattern.py", "mine/deep/scores.py", "mine.pattern.Mine", "mine.deep.scores"),
    "a package that re-exports": ("mine/pattern.py", "mine/deep/scores.py", "mine.Mine", ".deep.scores"),
}
INIT = "from mine.pattern import Mine\nfrom mine.others import Other\n"


@pytest.mark.parametrize("place", PLACES)
def test_a_users_own_pattern_counts_with_all_that_it_imports(composed, own_modules, place):
    pattern, scores, target, helper = PLACES[place]
    folder = own_modules(
        {
            pattern: PATTERN.format(helper=helper),
            scores: "SCALE = 1\n",
            "mine/__init__.py": INIT if target == "mine.Mine" else "",
            "mine/deep/__init__.py": "",
            "mine/others.py": "class Other: ...\n",
        }
    )
    user = [*ON_CPU, "pattern=block_wise", f"pattern._target_={target}"]

    def after(file: str, content: str) -> set[str]:
        before = digests(composed(*user))
        own_modules({file: content})
        return changed(before, digests(composed(*user)))

    own = (folder / pattern).read_text()
    assert after(pattern, own.replace("A user's", "My own").replace("# of the scores", "# of all")) == set()
    assert after(f"{Path(pattern).parent}/new_pattern.py", own) == set()
    assert after("mine/others.py", "class Other: size = 1\n") == set()
    assert after(pattern, own + "    def extra(self): ...\n") == FROM_PRUNE
    assert after(scores, "SCALE = 2\n") == FROM_PRUNE
    assert after(f"{Path(pattern).parent}/search.cu", "int best;\n") == FROM_PRUNE


def test_a_new_file_of_patterns_is_none_of_anybodys(composed, new_process, monkeypatch):
    """Nothing that names a run lists the folder of patterns."""
    listed = []
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: listed.append(self) or real(self))
    new_process()
    digests(composed(*ON_CPU))
    assert listed and not any(folder.is_relative_to(SPARSEFRONT) for folder in listed)


def test_a_setting_that_a_models_fingerprint_leaves_out_counts(composed, own_modules, tmp_path):
    own_modules({"my_model.py": MODEL})
    user = [*ON_CPU, "model._target_=my_model.Mine"]
    before = digests(composed(*user))
    assert changed(before, digests(composed(*user, "+model.drop=0.1"))) == ALL
    assert changed(before, digests(composed(*user, "model.prune_head=true"))) == FROM_PRUNE
    stem = tmp_path / "stem.bin"
    stem.write_bytes(b"one")
    with_stem = digests(composed(*user, f"+model.stem={stem}"))
    assert changed(before, with_stem) == ALL
    moved = stem.rename(tmp_path / "moved.bin")
    assert digests(composed(*user, f"+model.stem={moved}")) == with_stem
    moved.write_bytes(b"two")
    assert changed(with_stem, digests(composed(*user, f"+model.stem={moved}"))) == ALL


def test_a_table_that_a_user_names_counts_by_content_and_no_key_holds_a_path(composed, own_modules, tmp_path):
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


def test_a_class_that_is_named_inside_the_settings_counts(composed, own_modules):
    own_modules(
        {
            "my_pattern.py": PATTERN.format(helper="my_scores").replace("str | None", "dict | None"),
            "my_scores.py": "SCALE = 1\n",
            "my_search.py": "class Search: ...\n",
        }
    )
    user = [*ON_CPU, "pattern=block_wise", "pattern._target_=my_pattern.Mine"]
    user.append("+pattern.table={_target_: my_search.Search}")
    before = digests(composed(*user))
    own_modules({"my_search.py": "class Search: size = 1\n"})
    assert changed(before, digests(composed(*user))) == FROM_PRUNE


def test_a_class_without_a_file_is_rejected(composed, own_modules):
    own_modules({"my_model.py": MODEL + "Mine.__module__ = 'nowhere'\n"})
    with pytest.raises(InvalidSetting, match="model._target_=nowhere.Mine: must be a class in a file"):
        stage_keys(validate(composed(*ON_CPU, "model._target_=my_model.Mine")))


def test_a_moved_checkpoint_keeps_its_keys(composed, tmp_path):
    from safetensors.torch import save_file

    from sparsefront.stages.network import build_net

    (tmp_path / "here").mkdir()
    save_file(build_net(validate(composed(*ON_CPU))).state_dict(), tmp_path / "here" / "model.safetensors")
    before = stage_keys(validate(composed(*ON_CPU, f"model.path={tmp_path / 'here'}")))
    moved = (tmp_path / "here").rename(tmp_path / "there")
    assert stage_keys(validate(composed(*ON_CPU, f"model.path={moved}"))) == before
    assert str(tmp_path) not in str(asdict(before))
