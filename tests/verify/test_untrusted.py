"""A stranger's result runs no code: verify and load_run take the configuration that a run recorded as data."""

import io
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml

import sparsefront as sf
from sparsefront.__main__ import compare
from sparsefront.results.packed import MEMBERS, pack
from sparsefront.results.page.run import run_details
from sparsefront.results.run_folder import find_checkpoint, overrides_command
from sparsefront.verify import rows
from sparsefront.verify.__main__ import main

OWN = (
    "from dataclasses import dataclass\n"
    "from sparsefront.patterns.element_wise import ElementWise\n\n"
    "@dataclass(frozen=True)\nclass Own(ElementWise):\n    name = 'own'\n"
)


def answers(said: str) -> list[str]:
    """Lines of stderr without those that tell what is done."""
    return [line for line in said.splitlines() if not line.endswith(" ...")]


@pytest.fixture
def run(copied: Path) -> Path:
    return copied


def overrides_of(marker: Path, folder: Path) -> dict[str, list[str]]:
    """Recorded overrides that run a command, or import a module that does, wherever they are composed as the user's own."""
    touch = f"touch {marker}"
    return {
        "a process": ["importance._target_=subprocess.Popen", f"+importance.args='{touch}'", "+importance.shell=true"],
        "a function": ["schedule._target_=os.system", f"+schedule.command='{touch}'"],
        "a builtin": ["model._target_=builtins.exec", f"+model.source='open({str(marker)!r}, \"w\")'"],
        "a module's import": ["pattern._target_=own_trap.Own"],
        "our own function": ["dataset._target_=sparsefront.artifacts.durable.whole_file", f"+dataset.path={marker}"],
        "another base": ["recovery._target_=sparsefront.patterns.element_wise.ElementWise"],
        "a candidate": ["pattern=mixed", "pattern.candidates=[{_target_: own_trap.Own}]"],
        "a search path": [f"hydra.searchpath=[file://{folder}]", "pattern=evil"],
        "a package on the path": ["hydra.searchpath=[pkg://own_trap]", "pattern=evil"],
        "a file elsewhere": [f"pattern={os.path.relpath(folder / 'pattern' / 'evil', '/')}"],
        "a file above": ["pattern=../../../../../../../../" + str(folder / "pattern" / "evil").lstrip("/")],
        "another package of the group": ["pattern@dataset=n_m"],
        "a resolver": ["sparsity=${oc.env:HOME}"],
        "an escaped resolver": [r"model.dim=$\{oc.env:HOME\}"],
        "a quoted resolver": ["model.dim='${oc.env:HOME}'"],
        "a resolver in a mapping": [r"+model.more={a: [$\{oc.env:HOME\}]}"],
        "a resolver by its name's key": ["dataset.name=oc.env", "model.dim=${${dataset.name}:HOME}"],
        "a callback": ["+hydra.callbacks.own._target_=own_trap.Own", "pattern._target_=own_trap.Own"],
        "a launcher": ["hydra/launcher=own_trap", "pattern._target_=own_trap.Own"],
        "a defaults list": ["+defaults=[evil]"],
        "a sweep": ["sparsity=0.5,0.75"],
        "no override": ["}{"],
    }


def set_trap(own_modules, tmp_path: Path) -> tuple[Path, Path]:
    """A module that leaves a file where it is imported, and options that name it."""
    marker, folder = tmp_path / "ran", tmp_path / "options"
    own_modules({"own_trap.py": f"open({str(marker)!r}, 'w').close()\n{OWN}", "own_package/__init__.py": "1 / 0\n"})
    (folder / "pattern").mkdir(parents=True)
    (folder / "pattern" / "evil.yaml").write_text("_target_: own_trap.Own\n")
    return marker, folder


@pytest.mark.parametrize("name", overrides_of(Path("marker"), Path("/options")))
def test_recorded_overrides_run_nothing(own_modules, run, tmp_path, capsys, monkeypatch, name):
    marker, folder = set_trap(own_modules, tmp_path)
    monkeypatch.setenv("HOME", "a secret of the reader")
    recorded = run / ".hydra" / "overrides.yaml"
    recorded.write_text(yaml.safe_dump([*yaml.safe_load(recorded.read_text()), *overrides_of(marker, folder)[name]]))
    monkeypatch.setattr(rows, "run_overrides", lambda *given: pytest.fail(f"it trains with {given}"))
    for more in ([], ["--retrain", "trust=[os,subprocess,builtins]"]):
        assert main([str(run), *more]) in (1, 2)
        found = capsys.readouterr()
        assert "Traceback" not in found.err and len(answers(found.err)) == 1, found.err
        assert found.out.splitlines()[-1] in ("differs", "not evaluated")
        assert os.environ["HOME"] not in found.out + found.err
    try:
        _ = sf.load_run(run, trust=["os", "subprocess", "builtins"]).network
    except sf.InvalidSetting as error:
        assert "\n" not in str(error)
    else:
        assert name in ("a process", "a function", "another base"), "of groups that a network is not built of"
    assert not marker.exists()


class Reduced:
    """Unpickled, it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def strangers_files(marker: Path) -> dict[str, tuple[str, bytes]]:
    """Files of a run's folder that would run a command, or load code, if they were more than data."""
    touch, arrays = f"touch {marker}", io.BytesIO()
    np.savez(arrays, dense=np.array([Reduced(touch)], dtype=object))
    pickled, tag = pickle.dumps({"weight": Reduced(touch)}), f'!!python/object/apply:os.system ["{touch}"]'
    node = {"_target_": "os.system", "command": touch}
    sources = [{"provider": "command-line", "schema": "file", "path": str(marker.parent)}]
    hydra = {"callbacks": {"own": node}, "launcher": node, "runtime": {"config_sources": sources, "choices": node}}
    script = f"<script>fetch('file://{marker}')</script>"
    network = {"rates": [], "requests_per_s_at_p99": None, "joules_per_call": None, "samples_of_energy": 1}
    served = {"device": script, "p99_ms": 20.0, "dense": network | {"no_energy": f"\x1b[2J{script}"}}
    return {
        **{f"a tag in {name}": (f".hydra/{name}.yaml", tag.encode()) for name in ("overrides", "config", "hydra")},
        "classes in hydra.yaml": (".hydra/hydra.yaml", yaml.safe_dump({"hydra": hydra}).encode()),
        "classes in config.yaml": (".hydra/config.yaml", yaml.safe_dump({"model": node, "pattern": node}).encode()),
        "a resolver in config.yaml": (".hydra/config.yaml", b"model: {dim: '${oc.env:HOME}'}"),
        "classes in overrides.yaml": (".hydra/overrides.yaml", yaml.safe_dump([f"model={node}"]).encode()),
        "a command in checkpoint.txt": ("checkpoint.txt", f"$({touch})".encode()),
        "a folder in checkpoint.txt": ("checkpoint.txt", str(marker.parent).encode()),
        "pickled weights": ("checkpoint/model.safetensors", pickled),
        "pickled masks": ("checkpoint/masks.safetensors", pickled),
        "a class in the manifest": ("checkpoint/manifest.json", json.dumps({"pattern_class": "os.system"}).encode()),
        "pickled outcomes": ("outcomes.npz", arrays.getvalue()),
        "a pickle as outcomes": ("outcomes.npz", pickled),
        "a script in samples.json": ("samples.json", json.dumps({script: [[1.0]]}).encode()),
        "a script in serving.json": ("serving.json", json.dumps(served).encode()),
        "a script in failure.json": ("failure.json", json.dumps({"message": script}).encode()),
        "a script in the command": (".hydra/overrides.yaml", yaml.safe_dump([f"recipe.lr={script}"]).encode()),
    }


@pytest.mark.parametrize("name", strangers_files(Path("marker")))
def test_strangers_files_are_data(run, tmp_path, capsys, monkeypatch, name):
    """In the folder and, where it holds such a file, in a packed record: for verify, load_run and the page of a comparison."""
    marker, (file, content) = tmp_path / "ran", strangers_files(tmp_path / "ran")[name]
    monkeypatch.setenv("HOME", "a secret of the reader")
    monkeypatch.chdir(tmp_path)
    (run / file).write_bytes(content)
    sent = [run]
    if file in MEMBERS:
        members = {member: (run / member).read_bytes() for member in MEMBERS if (run / member).exists()}
        sent.append(tmp_path / "packed.record.zip")
        sent[1].write_bytes(pack(members))
    for place in sent:
        assert main([str(place), "--cache-dir", str(tmp_path / "empty")]) in (1, 2, 3)
        compare([str(place), "rows=all"])
    with suppress(sf.InvalidSetting):
        _ = sf.load_run(run).network
    found, pages = capsys.readouterr(), [page.read_text() for page in tmp_path.rglob("compare.html")]
    assert pages and "Traceback" not in found.err and not marker.exists() and "\x1b" not in found.out + found.err
    assert "a secret of the reader" not in found.out + found.err + "".join(pages) and "<script>fetch" not in "".join(
        pages
    )


def test_stored_configuration_is_not_built(own_modules, run, tmp_path, capsys):
    marker, folder = set_trap(own_modules, tmp_path)
    config, hydra = run / ".hydra" / "config.yaml", run / ".hydra" / "hydra.yaml"
    config.write_text(config.read_text().replace("sparsefront.models.vit_small.VitSmall", "own_trap.Own"))
    source = {"provider": "command-line", "schema": "file", "path": str(folder)}
    hydra.write_text(yaml.safe_dump({"hydra": {"runtime": {"config_sources": [source]}, "searchpath": [str(folder)]}}))
    assert main([str(run)]) == 1
    assert "refused: config.yaml: was edited: model._target_ is own_trap.Own in it" in capsys.readouterr().err
    assert sf.load_run(run).network is not None
    assert not marker.exists()


def test_places_of_the_run(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded = run / ".hydra" / "overrides.yaml"
    places = {name: tmp_path / name for name in ("cache_dir", "results_dir", "hydra.run.dir", "hydra.sweep.dir")}
    others = [f"{name}={place}" for name, place in places.items()]
    kept = [text for text in yaml.safe_load(recorded.read_text()) if not text.startswith(("cache_dir", "results_dir"))]
    recorded.write_text(yaml.safe_dump([*kept, *others, "logger=wandb", "stages=[dense]", "reuse=false"]))
    assert main([str(run)]) == 3, capsys.readouterr().err
    assert sf.load_run(run).network is not None
    assert not any(place.exists() for place in places.values())


def test_export_of_another_class(own_modules, run, tmp_path, capsys):
    marker, _ = set_trap(own_modules, tmp_path)
    file = run / "checkpoint" / "manifest.json"
    edited = {"pattern_class": "own_trap.Own", "pattern_parameters": {}}
    file.write_text(json.dumps(json.loads(file.read_text()) | edited))
    assert main([str(run)]) == 1
    with pytest.raises(sf.InvalidSetting, match=r"own_trap.Own: is no class of sparsefront, .*trust=\[\"own_trap\"\]"):
        _ = sf.load_run(run).masks
    assert not marker.exists()


@pytest.mark.parametrize("link", [False, True])
def test_checkpoint_leads_to_exports(run, tmp_path, capsys, link):
    """Neither a path nor a link is followed elsewhere, and a text without end is not read."""
    other = tmp_path / "private"
    shutil.move(run / "checkpoint", other)
    if link:
        (run / "checkpoint").symlink_to(other)
    else:
        (run / "checkpoint.txt").write_text(f"{other}\n")
    assert find_checkpoint(run) is None
    assert main([str(run), f"--cache-dir={tmp_path}"]) == 2
    assert "checkpoint=export/" in capsys.readouterr().err
    (run / "checkpoint.txt").unlink(missing_ok=True)
    (run / "checkpoint.txt").symlink_to("/dev/zero")
    assert find_checkpoint(run) is None


def test_copied_command_sets_data_alone(run, tmp_path):
    """A command of the page is pasted into a shell, where it composes with the reader's own rights."""
    marker, folder = tmp_path / "marker", tmp_path / "options"
    recorded, command = run / ".hydra" / "overrides.yaml", overrides_command(run)
    hostile = [text for name, texts in overrides_of(marker, folder).items() if "sweep" not in name for text in texts]
    recorded.write_text(yaml.safe_dump([*yaml.safe_load(recorded.read_text()), *hostile, "seed=1\n touch x"]))
    sources = [{"provider": "command-line", "schema": "file", "path": str(folder)}]
    (run / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": {"config_sources": sources}}}))
    words, honest = shlex.split(overrides_command(run), comments=True), shlex.split(command)
    assert words[: len(honest)] == honest
    more = [word for word in words[len(honest) :] if not word.startswith("+")]  # unknown keys of our classes
    assert not re.search(r"_target_|hydra|@|touch|oc\.env:|/|own_trap", " ".join(more))
    assert overrides_command(run).partition("  # without ")[2].startswith("--config-dir, importance._target_")


@pytest.mark.parametrize("target", ["private.txt", "/dev/zero"])
def test_picture_of_another_file(run, tmp_path, target):
    (tmp_path / "private.txt").write_text("a secret")
    (run / "masks").mkdir(exist_ok=True)
    for file in (run / "masks").iterdir():
        file.unlink()
    (run / "masks" / "a.png").symlink_to(tmp_path / target)
    assert run_details([sf.load_run(run).record], lambda _: run, [])["pictures"] == {}


def test_modules_beside_the_result(run, tmp_path):
    """`python -m` puts the working directory in front of the path of imports."""
    marker = tmp_path / "ran"
    for name in ("torch", "hydra", "omegaconf", "argparse", "numpy"):
        (run / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    source = Path(sf.__file__).parents[1]
    path = os.pathsep.join(map(str, (source, source.parent / "kernels")))
    command = [sys.executable, "-m", "sparsefront.verify", "--help"]
    ran = subprocess.run(command, cwd=run, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0 and "usage: " in ran.stdout, ran.stderr
    assert not marker.exists()


def test_own_class_needs_trust(tiny, own_modules, finished, tmp_path, capsys):
    own_modules({"own_pattern.py": OWN})
    places = (f"cache_dir={finished.parents[1] / 'cache'}", f"results_dir={tmp_path / 'results'}")
    mine = sf.run(*tiny, *places, "pattern=element_wise", "pattern._target_=own_pattern.Own", "sparsity=0.5")
    assert mine.masks.pruning.pattern.name == "own", "a run of this process"
    assert main([str(mine.folder)]) == 2
    told = "cannot be verified: pattern._target_=own_pattern.Own: is no class of sparsefront, and a class from a file is imp"
    assert told in capsys.readouterr().err
    with pytest.raises(sf.InvalidSetting, match="pattern._target_=own_pattern.Own: is no class of sparsefront"):
        _ = sf.load_run(mine.folder).network
    assert main([str(mine.folder), "trust=[own_pattern]"]) == 3, capsys.readouterr().err
    assert sf.load_run(mine.folder, trust=["own_pattern"]).masks.pruning.pattern == mine.masks.pruning.pattern


@pytest.mark.parametrize("trust", ["trust=[a b]", "trust=[../x]", "trust=", "trust=[a..b]"])
def test_trust_names_packages(run, capsys, trust):
    assert main([str(run), trust]) == 2
    assert "cannot be verified: trust=" in capsys.readouterr().err
