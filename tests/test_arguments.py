"""What a user types and Hydra would not take."""

import re
from pathlib import Path

import pytest

from sparsefront.config import arguments, schema
from sparsefront.config.arguments import GROUPS, normalize_arguments
from sparsefront.errors import InvalidSetting

CONF = Path(__file__).resolve().parent.parent / "conf"


@pytest.mark.parametrize("chosen", ["experiment=bert_sst2", "debug=tiny", "pattern=n_m"])
def test_a_group_with_a_plus_is_the_group(chosen):
    assert normalize_arguments([f"+{chosen}", "seed=1"]) == [chosen, "seed=1"]


@pytest.mark.parametrize(
    "flags", [["--config-dir", "DIR"], ["--config-dir=DIR"], ["-cd", "DIR", "-m"], ["--cfg", "job"], ["--info", "all"]]
)
def test_flags_may_stand_between_overrides(flags):
    assert normalize_arguments(["seed=1", *flags, "pattern=n_m"]) == [*flags, "seed=1", "pattern=n_m"]


@pytest.mark.parametrize("typed", ["sparsty=0.5", "patern.n=2", "hydr.run.dir=x", "models/bert=tiny"])
def test_an_unknown_root_key_is_told_with_those_that_there_are(typed):
    with pytest.raises(InvalidSetting, match=f"^{typed}: unknown key; .*the root takes sparsity, .*pattern, .*logger$"):
        normalize_arguments(["seed=1", typed])


SEEDS = "must be a whole number from 0 to 4294967295"
WRONG_TYPES = {
    "seed=1.5": f"seed=1.5: {SEEDS}",
    "seed=1,2.5,3": f"seed=2.5: {SEEDS}",
    "seed=range(0.5,4)": f"seed=0.5: {SEEDS}",
    "++sparsity=null": "sparsity=null: must be a number of at least 0 and below 1 (the fraction of zeros)",
    "stages=dense": "stages=dense: must be a list of one or more names out of dense, prune, ",
    "optimize=[[a]],[b]": "optimize=[[a]]: must be a list of texts",
    "reuse=maybe": "reuse=maybe: must be true or false",
    "granularity=[4]": "granularity=[4]: must be a whole number or text or null",
    "results_dir=null": "results_dir=null: must be text",
}


@pytest.mark.parametrize(("typed", "message"), WRONG_TYPES.items())
def test_a_root_value_of_another_type_is_told_with_what_its_key_takes(typed, message):
    with pytest.raises(InvalidSetting, match=f"^{re.escape(message)}"):
        normalize_arguments(["-m", "pattern=n_m", typed])


@pytest.mark.parametrize(
    "typed",
    ["seed='5'", "sparsity=0,'0.5'", "sparsity=interval(0,0.9)", "seed=${recovery.seed}", "granularity=4x64,null"],
)
def test_what_the_typed_root_takes_or_hydra_tells_stays_what_it_is(typed):
    assert normalize_arguments(["-m", typed]) == ["-m", typed]


def test_a_group_needs_an_option():
    with pytest.raises(InvalidSetting, match="^allocation=null: choose an option of the group: allocation=NAME"):
        normalize_arguments(["seed=1", "allocation=null"])


@pytest.mark.parametrize("group", schema.GROUPS)
@pytest.mark.parametrize("value", ["[name]", "[a,b]", "[a],[b]", "[]"])
def test_a_group_takes_one_option_and_no_list(group, value):
    with pytest.raises(InvalidSetting, match=rf"^{group}={re.escape(value)}: takes one option: {group}=NAME; .*-m"):
        normalize_arguments(["-m", f"{group}={value}"])


BROKEN = {
    "syntax": ("kind: [1\n", "is no YAML: .*line 2, column 1: "),
    "a key twice": ("m: 1\nm: 2\n", "is no YAML: .*line 2, column 1: found duplicate key m"),
    "a list": ("- a\n", "holds a list"),
    "a number": ("5\n", "cannot be read: "),
}


@pytest.mark.parametrize("flags", [["--config-dir", "{0}"], ["-cd={0}"], ["hydra.searchpath=[file://{0}]"]])
@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_chosen_option_that_is_no_yaml_is_named_with_the_place(tmp_path, flags, content, message):
    (tmp_path / "pattern").mkdir()
    (tmp_path / "pattern" / "strips.yaml").write_text(content)
    typed = [flag.format(tmp_path) for flag in flags]
    with pytest.raises(InvalidSetting, match=f"^pattern=strips: .*{message}"):
        normalize_arguments(["-m", "pattern=n_m,strips", *typed])
    normalize_arguments(["pattern=n_m", *typed])


def test_every_group_of_the_configuration_is_known():
    folders = {folder.name for folder in CONF.iterdir() if folder.is_dir()} - {"hydra"}
    assert set(GROUPS) == folders


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("hydra/sweeper=optuna", "optuna is not installed: pip install -e .*sweep"),
        ("hydra/launcher=joblib", "hydra-joblib-launcher is not installed: pip install -e .*joblib"),
        ("hydra/launcher=ray", "hydra-ray-launcher is not installed: pip install -e .*ray"),
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher is not installed: pip install -e .*submitit"),
    ],
)
def test_a_missing_plugin_is_told_with_what_installs_it(monkeypatch, argument, message):
    monkeypatch.setattr(arguments, "_installed", lambda distribution: False)
    with pytest.raises(InvalidSetting, match=f"^{argument}: the package {message}"):
        normalize_arguments(["-m", argument, "seed=1,2"])
    monkeypatch.setattr(arguments, "_installed", lambda distribution: True)
    assert normalize_arguments([argument]) == [argument]
