"""What `pip install` gives where there is no repository: the commands, the groups of options, the kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("src", "kernels", "conf", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the wheel's content, built from a copy so that nothing is left in the working tree."""
    pytest.importorskip("setuptools", minversion="77")
    copy, site = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / part, copy / part)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(site)]
    done = subprocess.run([*pip, "install", *options, str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


def call(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", "-m", "sparsefront", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_it_comes_from_the_wheel_and_has_a_version(installed, tmp_path):
    where = "import sparsefront, sparsefront_kernels; print(sparsefront.__file__, sparsefront.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(installed / "sparsefront" / "__init__.py"), "0.1.0"], done.stderr
    assert call(installed, tmp_path, "--version").stdout == "sparsefront 0.1.0\n"
    assert (installed / "bin" / "sparsefront").exists()


def test_every_option_of_the_repository_is_there(installed):
    own = {file.relative_to(ROOT) for file in (ROOT / "conf").rglob("*.yaml")}
    assert own == {
        file.relative_to(installed / "sparsefront") for file in (installed / "sparsefront" / "conf").rglob("*.yaml")
    }


def test_each_command_answers_without_a_repository(installed, tmp_path):
    composed = call(installed, tmp_path, "run", "--cfg", "job", "pattern=n_m", "experiment=bert_squad")
    assert "sparsefront.patterns" in composed.stdout and composed.returncode == 0, composed.stderr
    for command in ("compare", "verify", "cache"):
        done = call(installed, tmp_path, command, "--help")
        assert done.returncode == 0 and done.stdout, (command, done.stderr)
    wrong = call(installed, tmp_path, "prune")
    assert (
        wrong.returncode == 2
        and wrong.stderr == "sparsefront prune: no such command; there are run, compare, verify, cache\n"
    )
    assert "usage: sparsefront COMMAND" in call(installed, tmp_path).stdout


def test_a_slip_at_the_root_is_answered_without_torch(tmp_path):
    program = (
        "import sys; from sparsefront.__main__ import run\n"
        "try: run(['sparsity=75'])\n"
        "except SystemExit as error: print(error.code, {'torch', 'pandas', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "sparsity=75.0: must be a number of at least 0 and below 1 (the fraction of zeros) set()\n"


def test_the_shell_completes_options(tmp_path):
    call = [sys.executable, str(ROOT / "run.py"), "-sc"]
    installed = subprocess.run([*call, "install=bash"], cwd=tmp_path, capture_output=True, text=True)
    assert "complete" in installed.stdout and installed.returncode == 0
    line = "python run.py pattern=ti"
    environment = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    found = subprocess.run([*call, "query=bash"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.stdout.split() == ["pattern=tile_2_4", "pattern=tile_wise"]
