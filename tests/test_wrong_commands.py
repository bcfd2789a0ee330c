"""Wrong command lines: each is answered by one line that names key, value and what is allowed."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf
from quick_compositions import CONF, composition

from sparsefront.config import arguments
from sparsefront.config.arguments import GROUPS, normalize_arguments
from sparsefront.config.settings import check_root, check_types
from sparsefront.config.sweeps import NOT_COMPOSED, composition_complaint
from sparsefront.errors import InvalidSetting

# Words of a command line -> what its message holds.
WRONG = {
    "sparsity": "sparsity: cannot be read (missing EQUAL at '<EOF>'): an override is KEY=VALUE",
    "=5": "=5: names no key",
    "~": "~: names no key",
    "sparsity=": "sparsity=: Value '' of type 'str' could not be converted to Float",
    "sparsity=null": "sparsity=null: field 'sparsity' is not Optional",
    "sparsity=0,5": "Ambiguous value for argument 'sparsity=0,5'; 1. To use it as a list, use key=[value1,value2]; 2. ",
    "pattern=n_m,tile_wise": "3. To sweep over it, add --multirun",
    "recipe.ignore=[a": "recipe.ignore=[a: cannot be read",
    "recipe.ignore=[a]]": "recipe.ignore=[a]]: cannot be read (extraneous input ']')",
    "sparsity='0.5": "sparsity='0.5: cannot be read",
    "sparsity=${": "sparsity=${: cannot be read",
    ".pattern=3": ".pattern=3: cannot be read",
    "-m seed=1,": "seed=1,: cannot be read",
    "-m seed=range(a,b)": "mismatch type argument start",
    "-m seed=f(1)": "Unknown function 'f'",
    "hydra.run.dir=": "hydra.run.dir=: names no folder; the folder you stand in is .",
    "-m hydra.sweep.dir= seed=1,2": "hydra.sweep.dir=: names no folder",
    "hydra.searchpath=[/nowhere]": "hydra.searchpath=/nowhere: is no folder: name one that holds groups of options",
    "hydra.searchpath=[file://nowhere,pkg://json]": "hydra.searchpath=file://nowhere: is no folder",
    "pattern=2:4": "pattern=2:4: no such option; there are block_2_4",
    "pattern=": "pattern=: no such option; there are block_2_4",
    "pattern=3": "pattern=3: no such option",
    "pattern=tilewise": "pattern=tilewise: no such option; did you mean tile_wise?",
    "+pattern=tile_wize": "pattern=tile_wize: no such option; did you mean tile_wise?",
    "-m pattern=n_m,TileWise": "pattern=TileWise: no such option; did you mean tile_wise? there are ",
    "experiment=foo": "experiment=foo: no such option",
    "~pattern": "pattern=null: no such option",
    "~recipe": "recipe=null: no such option",
    "allocation=null": "allocation=null: no such option; there are erk, ",
    "recovery=[distill]": "recovery=[distill]: takes one option: recovery=NAME",
    "-m model=[a,b],[]": "model=[a,b],[]: takes one option: model=NAME",
    "sparsty=0.5": "sparsty=0.5: unknown key; did you mean sparsity? the root takes sparsity, granularity, seed, ",
    "models/bert=tiny": "models/bert=tiny: unknown key; did you mean model? the root takes sparsity, ",
    "+foo=1": "foo=1: unknown key; the root takes",
    "seed=a": "seed=a: Value 'a' of type 'str' could not be converted to Integer",
    "granularity=1.5": "granularity=1.5: Value '1.5' of type 'float' is incompatible with type hint",
    "reuse=maybe": "reuse=maybe: Value 'maybe' is not a valid bool",
    "sparsity=75 pattern=n_m seed=-1": "seed=-1: must be greater than or equal to 0",
    "sparsity=75": "sparsity=75.0: must be less than 1 (the fraction of zeros)",
    "sparsity=nan": "sparsity=nan: must be a finite number",
    "stages=[mesure]": "stages=['mesure']: must be 'dense', 'prune'",
    "stages=[]": "stages=[]: must have at least 1 item",
    "stages=[swap]": "stages=[swap]: swap chooses kernels for what measure runs",
    "control=foo": "control=foo: is one of dense_continued",
    "optimize=[foo]": "optimize=foo: is not a field of the result",
    "cache_dir=/proc/x": "cache_dir=/proc/x: cannot be written",
    "pattern.granularity=x": "pattern.granularity=x: must be a valid integer",
    "granularity=0": "granularity=0: must be greater than 0",
    "granularity=4x0 pattern=block_wise": "granularity=4x0: must be a valid integer or must match pattern",
    "pattern.n=3": "pattern.n=3: unknown key of pattern=tile_wise; choose pattern=n_m, which takes it",
    "pattern.k=3": "pattern.k=3: unknown key; pattern takes granularity, element_overlay, ",
    "recovery.epoch=3": "recovery.epoch=3: unknown key; did you mean epochs? recovery takes epochs, lr",
    "allocation.min_density_share=0.2": "choose allocation=global_threshold, which takes it",
    "recipe.lrr=3 recipe.lr=nan": "recipe.lrr=3: unknown key; did you mean lr?",
    "recipe.lr=nan": "recipe.lr=nan: must be a finite number",
    "recipe.optimizer=adam": "recipe.optimizer=adam: must be 'adamw' or 'sgd'",
    "recipe.batch_size=32.0": "recipe.batch_size=32.0: must be a valid integer",
    'recipe.ignore=["("]': "is not a regular expression",
    "measure.samples=-1": "measure.samples=-1: must be greater than or equal to 5",
    "model.depth=0": "model.depth=0: must be greater than 0",
    "recovery=distill recovery.hardness=2": "recovery.hardness=2: must be less than or equal to 1 (the weight of the teacher)",
    "dataset.valid_fraction=0.9": "dataset.valid_fraction=0.9: must be less than or equal to 0.5",
}


def rejection(words: list[str]) -> str:
    """What is said of a command line."""
    try:
        config = composition(tuple(text for text in normalize_arguments(words) if not text.startswith("-")))
        choices = OmegaConf.to_container(config.hydra.runtime.choices)
        config = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        check_root(config)
        check_types(config, choices, [CONF])
    except InvalidSetting as error:
        return str(error)
    except NOT_COMPOSED as error:
        return composition_complaint(error)
    return "nothing"


@pytest.mark.parametrize(("line", "message"), WRONG.items(), ids=lambda value: str(value)[:30])
def test_wrong_command_line_is_one_line(line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = rejection(line.split())
    assert message in said and "\n" not in said


BROKEN = {"syntax": ("kind: [1\n", "line 2, column 1: "), "a key twice": ("m: 1\nm: 2\n", "found duplicate key m")}


@pytest.mark.parametrize("flags", [["--config-dir={0}"], ["hydra.searchpath=[file://{0}]"]])
@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_option_file_without_yaml_is_named(tmp_path, programs, flags, content, message):
    (tmp_path / "pattern").mkdir()
    (tmp_path / "pattern" / "strips.yaml").write_text(content)
    for words in (["pattern=strips"], ["-m", "pattern=n_m,strips"]):
        done = programs.run(["-m", "sparsefront", "run", *words, *(flag.format(tmp_path) for flag in flags)])
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1 and f"is no YAML: {tmp_path}/pattern/strips.yaml, " in line and message in line


CORRECTED = {
    "+experiment=bert_sst2 seed=1": "experiment=bert_sst2 seed=1",
    "+debug=tiny experiment=null": "debug=tiny",
    "+pattern=n_m": "pattern=n_m",
    "seed=1 --config-dir DIR pattern=n_m": "--config-dir DIR seed=1 pattern=n_m",
    "seed=1 -cd DIR -m pattern=n_m": "-cd DIR -m seed=1 pattern=n_m",
    "seed=1 --cfg job pattern=n_m": "--cfg job seed=1 pattern=n_m",
    "-m sparsity=interval(0,0.9)": "-m sparsity=interval(0,0.9)",
    "-m pattern=glob(*)": "-m pattern=glob(*)",
    "-m sweep.points=FILE": "-m hydra/sweeper=points hydra.sweeper.points=FILE",
}


@pytest.mark.parametrize(("typed", "for_hydra"), CORRECTED.items())
def test_arguments_become_those_of_hydra(typed, for_hydra):
    assert normalize_arguments(typed.split()) == for_hydra.split()


def test_every_group_is_known():
    assert set(GROUPS) == {folder.name for folder in CONF.iterdir() if folder.is_dir()} - {"hydra"}


@pytest.mark.parametrize(("option", "package"), arguments.PLUGINS.items(), ids=str)
def test_missing_plugin_names_its_installation(monkeypatch, option, package):
    argument, (distribution, extra) = "hydra/{}={}".format(*option), package
    monkeypatch.setattr(arguments, "_is_installed", lambda distribution: False)
    message = f"{argument}: the package {distribution} is not installed: pip install -e .*{extra}"
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        normalize_arguments(["-m", argument, "seed=1,2"])
    monkeypatch.setattr(arguments, "_is_installed", lambda distribution: True)
    assert normalize_arguments([argument]) == [argument]


def test_missing_record_is_named_without_torch(tmp_path):
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
