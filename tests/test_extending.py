"""docs/extending.md: its files, written to a folder of a user's own, run by its commands as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import sparsefront
from sparsefront.validate import BASES

ROOT = Path(sparsefront.__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "extending.md").read_text()
FILES = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", DOCUMENT, flags=re.DOTALL)
COMMANDS = {group: command for command, group in re.findall(r"```sh\n(python .*? (\w+)=\w+)\n```", DOCUMENT)}
QUICK = ["debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "kernel=none", "report.html=false"]
SMALL = ["model.dim=64", "model.depth=1"]  # of vit_small
# Importing torch takes longer than such a run: it is done once, and each command goes on from there on its own.
IN_TURN = """
import json, os, runpy, sys
import sparsefront.pipeline
for group, arguments in json.loads(sys.argv[1]).items():
    if (child := os.fork()) == 0:
        output = os.open(f"{group}.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1), os.dup2(output, 2)
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, in which all commands were run, with one cache, so that one dense network serves most of them."""
    folder = tmp_path_factory.mktemp("home")
    for name, content in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "own" / "__init__.py").touch()
    runs = {group: arguments(group, command) for group, command in COMMANDS.items()}
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT / "kernels")])  # what is installed, and $PWD
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", IN_TURN, json.dumps(runs)], cwd=folder, env=environment, check=True)
    return folder


def arguments(group: str, command: str) -> list[str]:
    _, program, *typed = shlex.split(command)
    quick = [*QUICK, *([] if group == "model" else SMALL), "cache_dir=cache", f"results_dir=results_{group}"]
    return [program.replace("~/sparsefront", str(ROOT)), *typed, *quick]


def test_there_is_an_example_of_each_kind():
    assert COMMANDS.keys() == BASES.keys()
    assert len(FILES) == 2 * len(COMMANDS) == DOCUMENT.count("```python\n") + DOCUMENT.count("```yaml\n")


def test_its_commands_run(home: Path):
    """All of them in one test: parallel workers would each run the commands again."""
    for group in BASES:
        said = (home / f"{group}.log").read_text()
        rows = list(home.glob(f"results_{group}/*/row.json"))
        assert len(rows) == 1, said
        row = json.loads(rows[0].read_text())
        assert COMMANDS[group].endswith(f" {group}={row['choice'][group]}")
        assert row["quality"]["masked"] is not None
        assert abs(row["sparsity"]["sparsity_achieved"] - 0.75) < 0.05
        pair = f"{row['choice']['model']}_{row['choice']['dataset']}"
        default = f"there is none named {pair}, so that the values of recipe=default hold"
        assert (default in said) == (group in ("model", "dataset"))
