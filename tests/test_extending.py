"""docs/extending.md: its files, written to a folder of a user's own, run by its commands as they stand."""

import inspect
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from PIL import Image
from program_server import ProgramServer
from pytorch_lightning import LightningDataModule
from tiny_files import write_text_files
from torch.utils.data import DataLoader, TensorDataset

import sparsefront
from sparsefront.pipeline import run_experiment

ROOT = Path(sparsefront.__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "extending.md").read_text()
FILES = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", DOCUMENT, flags=re.DOTALL)
COMMANDS = {
    choice: command for command, choice in re.findall(r"```sh\n(python .*?--config-dir.*? (\w+=\w+))\n```", DOCUMENT)
}
PROGRAMS = re.findall(r"```python\n([^#].*?)```", DOCUMENT, flags=re.DOTALL)
QUICK = ["debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "kernel=none", "measure.variants=[]"]
QUICK += ["report.html=false"]
SMALL = ["model.dim=64", "model.depth=1"]  # of vit_small


def write_class_folders(folder: Path) -> None:
    noise = np.random.RandomState(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(noise.randint(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / name / f"{number}.jpg")


class Rows(LightningDataModule):
    """As a tutorial has it."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.rows = TensorDataset(torch.randn(40, 1, 8, 8), torch.arange(40) % 10)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.rows, self.batch_size, shuffle=True)

    val_dataloader = test_dataloader = train_dataloader


IMPORTS = """import torch
from hydra.core.hydra_config import HydraConfig
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, programs: ProgramServer) -> Path:
    """A user's folder, in which all commands were run, with one cache, so that one dense network serves most of them."""
    folder = tmp_path_factory.mktemp("home")
    for name, content in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "own" / "__init__.py").touch()
    (folder / "own" / "rows.py").write_text(f"{IMPORTS}\n\n{inspect.getsource(Rows)}")
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT / "kernels")])  # what is installed, and $PWD
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    for choice, command in COMMANDS.items():
        done = programs.run(arguments(choice, command), cwd=folder, env=environment)
        (folder / f"{choice}.log").write_text(done.stdout + done.stderr)
    return folder


def arguments(choice: str, command: str) -> list[str]:
    _, program, *typed = shlex.split(command)
    quick = [*QUICK, *([] if "model=" in choice else SMALL), "cache_dir=cache", f"results_dir=results_{name(choice)}"]
    return [program.replace("~/sparsefront", str(ROOT)), *typed, *quick]


def name(choice: str) -> str:
    return choice.split("=")[1]


def test_its_commands_run(home: Path):
    """All of them in one test: parallel workers would each run the commands again."""
    for choice in COMMANDS:
        said = (home / f"{choice}.log").read_text()
        rows = list(home.glob(f"results_{name(choice)}/*/row.json"))
        assert len(rows) == 1, said
        row = json.loads(rows[0].read_text())
        group = choice.split("=")[0]
        assert name(choice) == row["choice"][group]
        assert row["quality"]["masked"] is not None
        assert abs(row["sparsity"]["sparsity_achieved"] - 0.75) < 0.05
        pair = f"{row['choice']['model']}_{row['choice']['dataset']}"
        default = f"there is none named {pair}, so that the values of recipe=default hold"
        assert (default in said) == (group in ("model", "dataset"))


@pytest.mark.parametrize(
    ("option", "write", "small"),
    [
        ("imagefolder", write_class_folders, ["dataset.image_size=32", "dataset.num_workers=0"]),
        ("text", write_text_files, ["model.size=tiny"]),
    ],
)
def test_own_data_needs_no_class(composed, tmp_path, option, write, small):
    (command,) = re.findall(rf"```sh\npython \S+ (dataset={option} .*)\n```", DOCUMENT)
    write(tmp_path / "DIR")
    typed = command.replace("=DIR", f"={tmp_path / 'DIR'}").split()
    run_experiment(composed(*QUICK, *small, "recovery=none", *typed))
    assert (Path(HydraConfig.get().runtime.output_dir) / "row.json").is_file()


def test_own_code_takes_ten_lines():
    (mine,) = (content for file, content in FILES if file == "own/mine.py")
    for piece in (mine, *PROGRAMS):
        lines = [line for line in piece.splitlines() if line and not line.startswith(("import ", "from "))]
        assert len(lines) <= 10


@pytest.mark.parametrize("program", PROGRAMS, ids=["transformers", "Accelerate"])
def test_own_loop_keeps_masks(tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    names: dict = {}
    exec(program, names)
    weights = {layer: names["net"].get_submodule(layer).weight for layer in names["masks"]}
    assert all(torch.equal(weights[layer] != 0, mask) for layer, mask in names["masks"].items())
