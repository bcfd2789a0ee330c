"""docs/extending.md: its files, written to a folder of a user's own, run by its commands as they stand."""

import json
import os
import re
import shlex
from abc import ABC
from pathlib import Path

import pytest
from program_server import ProgramServer

import sparsefront
from sparsefront.config.validate import BASES

ROOT = Path(sparsefront.__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "extending.md").read_text()
FILES = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", DOCUMENT, flags=re.DOTALL)
COMMANDS = {group: command for command, group in re.findall(r"```sh\n(python .*? (\w+)=\w+)\n```", DOCUMENT)}
KINDS = {group for group, base in BASES.items() if issubclass(base, ABC)} - {"logger"}
QUICK = ["debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "kernel=none", "measure.variants=[]"]
QUICK += ["report.html=false"]
SMALL = ["model.dim=64", "model.depth=1"]  # of vit_small


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, programs: ProgramServer) -> Path:
    """A user's folder, in which all commands were run, with one cache, so that one dense network serves most of them."""
    folder = tmp_path_factory.mktemp("home")
    for name, content in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "own" / "__init__.py").touch()
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT / "kernels")])  # what is installed, and $PWD
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    for group, command in COMMANDS.items():
        done = programs.run(arguments(group, command), cwd=folder, env=environment)
        (folder / f"{group}.log").write_text(done.stdout + done.stderr)
    return folder


def arguments(group: str, command: str) -> list[str]:
    _, program, *typed = shlex.split(command)
    quick = [*QUICK, *([] if group == "model" else SMALL), "cache_dir=cache", f"results_dir=results_{group}"]
    return [program.replace("~/sparsefront", str(ROOT)), *typed, *quick]


def test_there_is_an_example_of_each_kind():
    assert COMMANDS.keys() == KINDS
    assert len(FILES) == 2 * len(COMMANDS) == DOCUMENT.count("```python\n") + DOCUMENT.count("```yaml\n")


def test_its_commands_run(home: Path):
    """All of them in one test: parallel workers would each run the commands again."""
    for group in KINDS:
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
