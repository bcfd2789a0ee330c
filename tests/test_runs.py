"""Runs of the program from Python."""

from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from safetensors.torch import load_file, save_file

import sparsefront as sf
from sparsefront.export.checkpoint import MODEL
from sparsefront.results.tables import run_lines

TINY = ("debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("runs")
    return (f"cache_dir={folder / 'cache'}", f"results_dir={folder / 'results'}")


def test_run_returns_record_network_masks(places):
    finished = sf.run(*TINY, *places, "pattern=n_m", "sparsity=0.5")
    assert finished.record.choice.pattern == "n_m" and (finished.folder / "row.json").is_file()
    assert finished.masks.sparsity == 0.5 and finished.masks.pruning.pattern == sf.patterns.NM()
    weights = {name: finished.network.get_submodule(name).weight for name in finished.masks}
    assert all(not weights[name][~mask].any() for name, mask in finished.masks.items())
    lines = [(name, value) for section in run_lines(finished.record, brief=True) for name, value, _ in section]
    text, page = str(finished).splitlines(), finished._repr_html_()
    assert [line.split("  ")[0] for line in text[:-1]] == [name for name, _ in lines] and text[-1] == str(
        finished.folder
    )
    assert text[0].endswith(f"  {lines[0][1]}") and page.count("<tr>") == len(lines) and str(finished.folder) in page
    again = sf.load_run(finished.folder)
    assert again.record == finished.record
    state = finished.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.network.state_dict().items())
    assert not HydraConfig.initialized(), "nothing of the run is left in this process"
    assert (finished.folder / ".hydra" / "overrides.yaml").read_text().splitlines()[-1] == "- sparsity=0.5"


def test_dense_run_has_no_masks(places):
    finished = sf.run(*TINY, *places, "pattern=dense")
    assert finished.record.choice.pattern == "dense"
    with pytest.raises(sf.InvalidSetting, match="holds no checkpoint: the run pruned nothing"):
        _ = finished.network


def test_network_loads_without_initial_checkpoint(places, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = (*TINY, *places, "pattern=n_m", "sparsity=0.5", "stages=[dense,prune,recover,export]")
    save_file(sf.run(*begin).network.state_dict(), "first.safetensors")
    second = sf.run(*begin, "model.path=first.safetensors", "recipe.epochs=0", "recovery=none")
    Path("first.safetensors").unlink()
    weights = sf.load_run(second.folder).network.state_dict()
    assert all(
        torch.equal(value, weights[key]) for key, value in load_file(second.folder / "checkpoint" / MODEL).items()
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sparsity=2", r"sparsity=2.0: must be less than"),
        ("hydra/output=null", "overrides=hydra/output=null: "),
        ("results_dir=/proc/nope", "results_dir=/proc/nope: cannot be written"),
        (3, "overrides=3: are texts such as"),
    ],
)
def test_bad_override_is_one_line(places, override, message):
    with pytest.raises(sf.InvalidSetting, match=message) as caught:
        sf.run(*(() if "overrides" in message else places), override)
    assert "\n" not in str(caught.value)
    assert not HydraConfig.initialized()


def test_folders_that_are_none_are_refused(tmp_path: Path):
    with pytest.raises(sf.InvalidSetting, match=f"run_folder={tmp_path}: holds no run: row.json is missing"):
        sf.load_run(tmp_path)
    with pytest.raises(sf.InvalidSetting, match=f"config_dir={tmp_path}: must be the folder conf/"):
        sf.run(config_dir=tmp_path)
