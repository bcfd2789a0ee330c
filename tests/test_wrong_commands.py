"""Wrong command lines: each is answered by one line that names key, value and what is allowed, before torch is imported."""

import subprocess
import sys

import pytest
import yaml
from omegaconf import OmegaConf
from quick_compositions import CONF, composition

from sparsefront.config.arguments import normalize_arguments
from sparsefront.config.declared import check_declared, declared_types
from sparsefront.config.settings import build_settings, check_root
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import describe_type, parameters_of

# The words of a command line, and what its message holds.
TYPED = [
    ("sparsity", "sparsity: is neither KEY=VALUE"),
    ("=5", "=5: names no key"),
    ("~", "~: names no key"),
    ("sparsity=", "sparsity=: must be a number of at least 0 and below 1"),
    ("sparsity=null", "sparsity=null: must be a number"),
    ("sparsity=0,5", "sparsity=0,5: several values are a sweep: add -m"),
    ("seed=1,2", "seed=1,2: several values are a sweep: add -m; a list is seed=[1,2]"),
    ("pattern=n_m,tile_wise", "pattern=n_m,tile_wise: several values are a sweep"),
    ("recipe.ignore=[a", "recipe.ignore=[a: cannot be read: [ is not closed by ]"),
    ("pattern.candidates=[{a: 1]", "{ is not closed by }"),
    ("recipe.ignore=[a]]", "] closes no ["),
    ("sparsity='0.5", "sparsity='0.5: cannot be read: a quotation mark is not closed"),
    ("sparsity==0.5", "sparsity==0.5: cannot be read: an override is KEY=VALUE"),
    ("sparsity=0.5 granularity=4", "several overrides stand apart"),
    ("sparsity=${", "sparsity=${: cannot be read: { is not closed by }"),
    ("pattern.=3", "pattern.=3: cannot be read"),
    (".pattern=3", ".pattern=3: cannot be read"),
    ("-m seed=1,", "seed=1,: cannot be read: a value is missing behind the last comma"),
    ("-m seed=choice()", "empty choice is not legal"),
    ("-m seed=range(a,b)", "mismatch type argument start"),
    ("-m seed=f(1)", "Unknown function 'f'"),
    ("hydra.run.dir=", "hydra.run.dir=: names no folder; the folder you stand in is ."),
    ("-m hydra.sweep.dir= seed=1,2", "hydra.sweep.dir=: names no folder"),
    ("hydra.searchpath=[/nowhere]", "hydra.searchpath=/nowhere: is no folder: name one that holds groups of options"),
    ("hydra.searchpath=[file://nowhere,pkg://json]", "hydra.searchpath=file://nowhere: is no folder"),
    ("pattern=2:4", "pattern=2:4: no such option; there are block_2_4"),
    ("pattern=", "pattern=: no such option; there are block_2_4"),
    ("pattern=3", "pattern=3: no such option"),
    ("pattern=tilewise", "pattern=tilewise: no such option; did you mean tile_wise?"),
    ("dataset=mnist", "dataset=mnist: no such option; there are cifar10"),
    ("logger=tensorbord", "logger=tensorbord: no such option"),
    ("experiment=foo", "experiment=foo: no such option"),
    ("~pattern", "~pattern: a group cannot be left out"),
    ("~recipe", "~recipe: a group cannot be left out"),
    ("+pattern=tile_wize", "pattern=tile_wize: no such option; did you mean tile_wise?"),
    ("model=resnet", "model=resnet: no such option; did you mean resnet50? there are bert, "),
    ("-m pattern=n_m,TileWise", "pattern=TileWise: no such option; did you mean tile_wise? there are "),
    ("recovery=[distill]", "recovery=[distill]: takes one option: recovery=NAME"),
    ("allocation=null", "allocation=null: choose an option of the group: allocation=NAME"),
    ("sparsty=0.5", "sparsty=0.5: unknown key; did you mean sparsity? the root takes sparsity, granularity, seed, "),
    ("seed=a", "seed=a: must be a whole number"),
    ("granularity=1.5", "granularity=1.5: must be a whole number or text or null"),
    ("reuse=maybe", "reuse=maybe: must be true or false"),
    ("--foo", "--foo: no such flag; did you mean --info? there are --help"),
    ("-z", "-z: no such flag"),
    ("--multirun=3", "--multirun=3: takes no value"),
    ("--cfg foo", "--cfg=foo: must be one of job, hydra, all"),
    ("--info foo", "--info=foo: must be one of all, config"),
    ("-c", "-c: takes a value behind it"),
    ("--config-dir", "--config-dir: takes a value behind it"),
]
COMPOSED = [
    ("sparsity=75 pattern=n_m seed=-1", "seed=-1: must be a whole number from 0 to 4294967295"),
    ("sparsity=nan", "sparsity=nan: must be a finite number"),
    ("stages=[mesure]", "stages="),
    ("stages=[]", "stages="),
    ("stages=[swap]", "stages=[swap]: swap chooses kernels for what measure runs"),
    ("control=foo", "control=foo: is one of dense_continued"),
    ("optimize=[foo]", "optimize=foo: is not a field of the result"),
    ("cache_dir=/proc/x", "cache_dir=/proc/x: cannot be written"),
    ("+foo=1", "foo=1: unknown key; the root takes"),
    ("pattern.granularity=x", "pattern.granularity=x: must be a whole number of at least 1"),
    ("granularity=0", "granularity=0: must be a whole number of at least 1"),
    ("granularity=4x0 pattern=block_wise", "granularity=4x0: must be a whole number of at least 1 or text"),
    ("pattern.n=3", "pattern.n=3: unknown key of pattern=tile_wise; choose pattern=n_m, which takes it"),
    ("+pattern.foo=1", "pattern.foo=1: unknown key; "),
    ("pattern.k=3", "pattern.k=3: unknown key; pattern takes granularity, element_overlay, "),
    ("recipe.history=true", "recipe.history=True: unknown key; recipe takes batch_size, epochs"),
    ("recovery.epoch=3", "recovery.epoch=3: unknown key; did you mean epochs? recovery takes epochs, lr"),
    ("allocation.min_density_share=0.2", "choose allocation=global_threshold, which takes it"),
    ("sparsity=many", "sparsity=many: must be a number of at least 0 and below 1 (the fraction of zeros)"),
    ("recipe.lrr=3 recipe.lr=nan", "recipe.lrr=3: unknown key; did you mean lr?"),
    ("recipe.lr=nan", "recipe.lr=nan: must be a finite number greater than 0 and at most 1000, not NaN or infinity"),
    ("recipe.optimizer=adam", "recipe.optimizer=adam: must be adamw or sgd"),
    ("recipe.batch_size=32.0", "recipe.batch_size=32.0: must be a whole number of at least 1"),
    ('recipe.ignore=["("]', "is not a regular expression"),
    ("trainer.precision=fp7", "trainer.precision=fp7: must be one of auto, 32-true"),
    ("trainer.devices=0", "trainer.devices=0: must be a whole number of at least 1"),
    ("trainer.accelerator=tpu", "trainer.accelerator=tpu: must be one of auto, cpu, gpu"),
    ("measure.samples=-1", "measure.samples=-1: must be a whole number of at least 5"),
    ("model.depth=0", "model.depth=0: must be a whole number of at least 1"),
    ("recovery=distill recovery.hardness=2", "recovery.hardness=2: must be a number from 0 to 1"),
    ("schedule=gradual schedule.begin=-1", "schedule.begin=-1: must be a number from 0 to 1"),
    ("dataset.valid_fraction=0.9", "dataset.valid_fraction=0.9: must be a number from 0 to 0.5"),
]


def rejected(words: list[str]) -> str:
    """What is said of a command line, without torch."""
    with pytest.raises(InvalidSetting) as found:
        typed = [text for text in normalize_arguments(words) if not text.startswith("-")]
        config = composition(tuple(typed))
        choices = OmegaConf.to_container(config.hydra.runtime.choices)
        config = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        check_root(config)
        check_declared(config, choices, [CONF])
    return str(found.value)


@pytest.mark.parametrize(("line", "message"), [*TYPED, *COMPOSED], ids=lambda value: str(value)[:30])
def test_a_wrong_command_line_is_one_line(line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [line] if line == "sparsity=0.5 granularity=4" or "candidates" in line else line.split()
    said = rejected(words)
    assert message in said and "\n" not in said


def options() -> list[tuple[str, str]]:
    """Group and name of every option that names a class of ours."""
    files = sorted(file for file in CONF.glob("*/*.yaml") if "_target_" in file.read_text())
    return [(file.parent.name, yaml.safe_load(file.read_text())["_target_"]) for file in files]


def test_the_source_of_a_class_declares_what_the_class_takes():
    from sparsefront.config.settings import _imported

    unknown = 0
    for _, name in options():
        declared, real = declared_types(name), parameters_of(_imported("_target_", name))
        assert declared is not None and list(declared) == list(real), name
        for key, hint in declared.items():
            unknown += "Any" in str(hint)
            assert "Any" in str(hint) or describe_type(hint) == describe_type(real[key]), f"{name}: {key}"
    assert unknown <= 8, "more types than these need their module to be run"


def test_a_wrong_value_of_a_group_is_told_without_torch_as_it_is_with_it(tmp_path):
    with pytest.raises(InvalidSetting) as slow:
        node = {"_target_": "sparsefront.training.recipe.Recipe", "lr": -1}
        build_settings("recipe", OmegaConf.create(node), "default")
    code = (
        "import sys; sys.argv[1:] = ['recipe.lr=-1', 'logger=none']\n"
        "from sparsefront.__main__ import run\n"
        "try: run(sys.argv[1:])\n"
        "except SystemExit as end: print(end)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == [str(slow.value), "False"] and not done.stderr


def test_a_record_that_is_not_there_is_named_without_torch(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.record.zip").write_bytes(b"PK")
    code = (
        "import sys\nfrom sparsefront.verify.__main__ import main\n"
        "print(main(['none.json', 'empty', 'none.record.zip', 'cut.record.zip']), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "2 False"
    assert done.stderr.splitlines() == [
        "cannot be verified: row=none.json: is no result that can be read: No such file or directory",
        "cannot be verified: row=empty/row.json: is no result that can be read: No such file or directory",
        "cannot be verified: row=none.record.zip: No such file or directory",
        "cannot be verified: row=cut.record.zip: is no packed record, or is cut off",
    ]
