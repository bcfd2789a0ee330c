"""The kernels as a distribution of their own."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from sysconfig import get_platform

import pytest
import sparsefront_kernels

PACKAGE = Path(sparsefront_kernels.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"
LEFT_OUT = {".md", ".pyc", ".so"}  # for people; what Python makes itself; what a wheel for one platform brings


def data_files() -> set[Path]:
    """What the package needs beside its modules."""
    return {
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in {".py", *LEFT_OUT} and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("project", [PROJECT, PACKAGE.parents[1] / "pyproject.toml"], ids=["kernels", "root"])
def test_headers_are_package_data(project: Path):
    patterns = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]["sparsefront_kernels"]
    covered = {path.relative_to(PACKAGE) for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert data_files() <= covered
    assert {path.suffix for path in data_files()} >= {".cu", ".cuh", ".json"}


def test_it_depends_on_torch_alone():
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert project["name"] == "sparsefront-kernels" and project["dependencies"] == ["torch>=2.11"]


def test_both_distributions_have_one_version():
    versions = [
        tomllib.loads(file.read_text())["project"]["version"]
        for file in (PROJECT, PACKAGE.parents[1] / "pyproject.toml")
    ]
    assert versions[0] == versions[1]


@pytest.mark.parametrize("prebuilt", [False, True], ids=["sources", "prebuilt"])
def test_a_wheel_holds_every_file(prebuilt: bool, tmp_path: Path):
    """Built from a copy, so that nothing is left in the working tree. With libraries it is one of this platform."""
    pytest.importorskip("setuptools", minversion="77")
    copy = tmp_path / "kernels"
    shutil.copytree(
        PACKAGE.parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "prebuilt")
    )
    library = Path("sparsefront_kernels", "prebuilt", "csr_sm90-key-cuda13.so")
    if prebuilt:
        (copy / library).parent.mkdir()
        (copy / library).write_text("a library")
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet", "--wheel-dir", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *map(str, options), str(copy)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("sparsefront_kernels-*.whl")
    tag = wheel.stem.split("-", 2)[2]
    assert tag == (f"py3-none-{get_platform().replace('-', '_').replace('.', '_')}" if prebuilt else "py3-none-any")
    held = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    modules = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert {Path("sparsefront_kernels") / path for path in data_files() | modules} <= held
    assert (library in held) == prebuilt
