"""What `pip install` gives where there is no repository: the commands, the groups of options, the kernels."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from sparsefront_kernels import cuda_library

from sparsefront import options
from sparsefront.__main__ import compare

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PREBUILT = "gathered_indexed"  # a small library that several GPUs run
PARTS = ("src", "kernels", "conf", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """Both, by the name of the package, built from a copy so that nothing is left in the working tree."""
    pytest.importorskip("setuptools", minversion="77")
    copy, built = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheels")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / part, copy / part)
    if cuda_library.compiler() is not None:
        program = (
            f"from sparsefront_kernels import cuda_library; cuda_library.build_for_wheel({PREBUILT!r}, ('80', '90a'))"
        )
        subprocess.run(
            [sys.executable, "-P", "-c", program], env={**os.environ, "PYTHONPATH": str(copy / "kernels")}, check=True
        )
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(built), str(copy), str(copy / "kernels"))
    return {file.name.split("-")[0]: file for file in built.iterdir()}


LOADS_PREBUILT = f"""
from sparsefront_kernels import cuda_library
cuda_library.compiler = lambda: print("nvcc is looked for")
print(cuda_library.load({PREBUILT!r}).sparsefront_{PREBUILT} is not None, cuda_library.build({PREBUILT!r}).name)
cuda_library.gpu_architectures = lambda: ("120",)
print(cuda_library.built({PREBUILT!r}))
"""


@pytest.mark.skipif(cuda_library.compiler() is None, reason="needs nvcc")
def test_wheel_of_kernels_brings_libraries(wheels, tmp_path):
    """Used without nvcc; a GPU that they do not serve is a line, and the way to one that is built here."""
    wheel = wheels["sparsefront_kernels"]
    assert re.fullmatch(r"sparsefront_kernels-.*-py3-none-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (library,) = (name for name in archive.namelist() if name.endswith(".so"))
    assert re.fullmatch(rf"sparsefront_kernels/prebuilt/{PREBUILT}-\w+-cuda\d+-sm80-sm90a\.so", library)
    pip("install", "--target", str(tmp_path / "site"), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "SPARSEFRONT_KERNELS_CACHE": str(tmp_path)}
    call = [sys.executable, "-P", "-c", LOADS_PREBUILT]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    name = Path(library).name
    assert done.stdout.splitlines() == [f"True {name}", "nvcc is looked for", "None"], done.stderr
    assert re.search(
        rf"the package has {name}, this machine needs \w+-cuda\d+-sm120: the CUDA library is built", done.stderr
    )


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory) -> Path:
    """A folder with the content of both."""
    site = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(site), *map(str, wheels.values()))
    return site


def pip(command: str, *arguments: str) -> None:
    called = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", command, "--no-deps", *arguments]
    done = subprocess.run(called, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def call(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", "-m", "sparsefront", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_installed_package_has_a_version(installed, tmp_path):
    where = "import sparsefront, sparsefront_kernels; print(sparsefront.__file__, sparsefront.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(installed / "sparsefront" / "__init__.py"), VERSION], done.stderr
    assert call(installed, tmp_path, "--version").stdout == f"sparsefront {VERSION}\n"
    assert (installed / "bin" / "sparsefront").exists()


def test_files_name_one_version():
    assert tomllib.loads((ROOT / "kernels" / "pyproject.toml").read_text())["project"]["version"] == VERSION
    citation, changes = ((ROOT / name).read_text() for name in ("CITATION.cff", "CHANGELOG.md"))
    date = re.search(r"^date-released: (.+)$", citation, re.MULTILINE)[1]
    assert f"\nversion: {VERSION}\n" in citation
    assert re.search(r"^## (.+)$", changes, re.MULTILINE)[1] == f"{VERSION} ({date})", "of the newest section"


def test_every_option_is_installed(installed):
    own = {file.relative_to(ROOT) for file in (ROOT / "conf").rglob("*.yaml")}
    assert own == {
        file.relative_to(installed / "sparsefront") for file in (installed / "sparsefront" / "conf").rglob("*.yaml")
    }


def test_commands_answer_without_a_repository(installed, tmp_path):
    composed = call(installed, tmp_path, "run", "--cfg", "job", "pattern=n_m", "experiment=bert_squad")
    assert "sparsefront.patterns" in composed.stdout and composed.returncode == 0, composed.stderr
    for command in ("compare", "verify", "cache", "build"):
        done = call(installed, tmp_path, command, "--help")
        assert done.returncode == 0, (command, done.stderr)
        assert f"usage: python -m sparsefront {command} " in done.stdout and "python -m sparsefront." not in done.stdout
    told = call(installed, tmp_path, "run", "--help").stdout
    assert "  python -m sparsefront compare\n" in told and "run.py" not in told
    wrong = call(installed, tmp_path, "prune")
    assert (
        wrong.returncode == 2
        and wrong.stderr == "sparsefront prune: no such command; there are run, compare, verify, cache, build\n"
    )
    assert "usage: sparsefront COMMAND" in call(installed, tmp_path).stdout
    script = [sys.executable, installed / "bin" / "sparsefront", "compare", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "usage: sparsefront compare " in done.stdout, done.stderr


def test_messages_name_the_typed_command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    package = Path(options.__file__).resolve().parent
    for started, named in (
        ("sparsefront/__main__.py", "python -m sparsefront run"),
        ("bin/sparsefront", "sparsefront run"),
    ):
        monkeypatch.setattr(sys, "argv", [str(package.parent / started)])
        assert compare([]) == 1
        assert f"\nresults=results: no results found; {named} makes one\n" in capsys.readouterr().err


def test_library_needs_its_dependencies_alone(tmp_path):
    """As after `pip install sparsefront`: the extra `run` cannot be imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split("[><=]", package)[0] for package in project["optional-dependencies"]["run"]}
    absent = {{"hydra-core": "hydra", "scikit-learn": "sklearn"}.get(name, name.replace("-", "_")) for name in names}
    absent -= {"jinja2"}  # which torch needs
    program = f"""
import sys; sys.modules |= dict.fromkeys({absent | {"omegaconf"}!r})
import copy, torch, sparsefront as sf
dense = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
net, x = copy.deepcopy(dense), torch.randn(2, 64)
masks = sf.prune(net, pattern="tile_wise", sparsity=0.75, granularity=16, example_inputs=(x,))
sf.save({str(tmp_path / "saved")!r}, net, masks)
sf.load({str(tmp_path / "saved")!r}, copy.deepcopy(dense))
sf.swap(net, masks, (x,))
try: sf.recover
except ImportError as error: print(error)
from sparsefront.program import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert re.search(r"\nsf.recover: Python package pytorch-lightning: .* pip install .*run", done.stdout)
    assert re.fullmatch(r"Python package hydra-core: is not installed: pip install .*\n", done.stderr), done.stderr
