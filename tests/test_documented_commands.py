"""Every command of README, CONTRIBUTING and docs works as it stands, on tiny settings and tiny data.

The commands of docs/extending.md, and the Python of docs/library.md, have tests of their own.
"""

import importlib.metadata
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from safetensors.torch import save_file
from tiny_files import WORDS, write_glue, write_pairs, write_squad

import sparsefront as sf
from experiments.language_models.tiny import make_llama, make_wikitext
from sparsefront.config.arguments import PLUGINS
from sparsefront.config.validate import validate
from sparsefront.models.bert import Bert

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/library.md",
    "docs/compare.md",
    "docs/reviewing.md",
    "docs/decisions.md",
    "docs/sweeps.md",
    "docs/search.md",
    "docs/choices.md",
    "docs/gpu.md",
    "docs/results.md",
]
PROGRAMS = r"(?:python|make|pip|pytest|pre-commit) "
QUICK = ("debug=tiny", "logger=none", "report.html=false", "trainer=cpu", "measure.device=cpu", "measure.variants=[]")
QUICK += ("measure.evaluate_limit=8", "kernel.fuse=false", "report.plot=false")
SMALL = ("model.dim=64", "model.depth=2")  # of the default model
NOT_HERE = {  # they need a GPU or install something
    "make test-gpu",
    "pytest -m gpu",
    "pip install .",
    "pip install timm",
    "pip install wandb-workspaces",
    "python compare.py source=wandb project=NAME entity=NAME panels=wandb",  # needs a server: tests/results has a false one
    *(f'pip install -e ".[{extra}]"' for extra in ("sweep", "joblib", "ray", "submitit")),
    'pip install ".[run]"',
    "pre-commit install",
    "python -m sparsefront_kernels.bench",
    "python tests/kernels/compiled.py",  # needs nvcc
    "python -m",  # the words alone, in docs/reviewing.md
}


def commands() -> list[str]:
    """Of code blocks and of running text, without their comments, each once."""
    found: dict[str, None] = {}
    for document in DOCUMENTS:
        text = re.sub(r"```python\n.*?```", "", (ROOT / document).read_text(), flags=re.S)
        blocks = re.findall(rf"^(?: {{4}}|)({PROGRAMS}.*)$", text, flags=re.M)
        inline = re.findall(rf"`({PROGRAMS}[^`]*)`", text.replace("\n", " "))
        found |= dict.fromkeys(re.split(r"\s+#\s", command)[0].strip() for command in [*blocks, *inline])
    return list(found)


def overrides(command: str) -> list[str]:
    return shlex.split(command.removeprefix("python run.py"))


def of_kind(*, swept: bool) -> list[str]:
    runs = [command for command in commands() if command.startswith("python run.py")]
    special = ("--help", "--config-dir", "hydra/", "sweep.points=")
    plain = [command for command in runs if not any(word in command for word in special)]
    return [command for command in plain if ("-m" in overrides(command)) == swept]


def test_each_command_is_tested():
    tested = {*of_kind(swept=True), *of_kind(swept=False), *PROGRAM_CALLS, *plugin_commands(), *make_commands()}
    assert set(commands()) - tested == {*NOT_HERE, LATENCY_TABLE, OWN_OPTIONS, FRONT, POINTS, *VERIFY, *STORES}


@pytest.fixture
def bert_folder(tmp_path):
    """A tiny BERT with random weights, as `save_pretrained` writes it, and its tokenizer."""
    from sparsefront.data.base import DataInfo

    info = DataInfo(kind="sequence_classification", num_classes=2, sequence_length=64)
    model, folder = Bert(size="tiny"), tmp_path / "bert"
    net = model.build(info)
    model.tokenizer([" ".join(WORDS), "abcdefghijklmnopqrstuvwxyz 0123456789 . , ?"])
    model.save_pretrained_files(net, folder)
    save_file(net.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


RUN = (
    "model.path=FILE",
    "experiment=bert_squad",
    "measure.batch_size=[",
)  # the commands that are more than a composition


def test_single_runs(composed, tmp_path, bert_folder, few_timings, programs):
    """Composed and checked, every one; three of them run, in one cache; then what reads the results of them."""
    squad_folder, glue_folder = write_squad(tmp_path / "squad"), write_glue(tmp_path / "glue", "sst2")
    places = (f"results_dir={tmp_path / 'results'}", f"cache_dir={tmp_path / '.cache' / 'sparsefront'}", *QUICK)
    assert sf.run(*places, *SMALL).record is not None
    (weights,) = (tmp_path / ".cache" / "sparsefront" / "dense").glob("*/weights.safetensors")
    runs = 0
    pairs = write_pairs(tmp_path / "pairs")
    llama, wikitext = make_llama(tmp_path / "llama", hidden=16, positions=1024), make_wikitext(tmp_path / "wikitext2")
    for command in of_kind(swept=False):
        data, model = squad_folder if "squad" in command else glue_folder, bert_folder
        if "smollm2" in command:
            data, model = wikitext, llama
        elif "multi30k" in command:
            data = pairs
        given = [text.replace("model.path=DIR", f"model.path={model}") for text in overrides(command)]
        given = [text.replace("model.path=FILE", f"model.path={weights}") for text in given]
        given = [text.replace("dataset.path=DIR", f"dataset.path={data}") for text in given]
        small = () if re.search("model=|experiment=(bert|smollm2)", command) else SMALL
        given = (*small, *(text for text in given if text != "debug=tiny"))
        validate(composed(*QUICK, *given))
        if any(text in command for text in RUN):
            runs += 1
            assert sf.run(*places, *given).record is not None, command
    assert runs == len(RUN)
    for command, said in PROGRAM_CALLS.items():
        done = programs.run(in_python(command)[1:], cwd=tmp_path, env=environment())
        assert done.returncode == 0 and said in done.stdout, (command, done.stderr)


@pytest.mark.parametrize("command", of_kind(swept=True))
def test_points_of_sweeps_can_run(composed, command):
    """Composed and checked, every one; that sweeps run is tested beside the command line."""
    asked = [text for text in overrides(command) if text != "-m"]
    if not any("," in text or "(" in text for text in asked):  # the preset itself says what is swept
        composed(*asked)
        asked += [f"{key}={values}" for key, values in HydraConfig.get().sweeper.params.items()]
    parsed = OverridesParser.create().parse_overrides(asked)
    points = [point for batch in BasicSweeper.split_arguments(parsed, None) for point in batch]
    assert len(points) > 1
    for point in points:
        validate(composed("debug=tiny", *point))


PROGRAM_CALLS = {  # -> what it says where results are
    "python run.py --help": "sparsity",
    "python compare.py results": "tile_wise",
    "python compare.py results log=wandb": "wandb",
    "python compare.py results rows=all": "tile_wise",
    "python compare.py --rebuild results": "rows.csv",
    "python -m sparsefront.cache": "dense",
    "python -m sparsefront.splits dataset=digits": "duplicates-1",
}
LATENCY_TABLE = "python -m sparsefront.results.latency_table results/SWEEP -o table.csv"  # see its own test
RECORD = "python -m sparsefront.verify results/RUN/row.json"
VERIFY = {RECORD, f"{RECORD} --record-only", f"{RECORD} model.path=DIR dataset.path=DIR"}  # see tests/verify
VERIFY |= {f"{RECORD} --retrain dataset.path=DIR", "python -P -m sparsefront.verify"}
POINTS = "python run.py -m sweep.points=points.yaml sweep.seconds=3600 sweep.pack=packed"  # see test_points.py
FRONT = "python compare.py results/studies/search.front.txt"  # after the search of the same document
STORES = {  # of several machines: see tests/results/test_store.py
    "python compare.py laptop/results cluster/results",
    "python compare.py --rebuild a b store=all.csv",
}
OWN_OPTIONS = "python run.py --config-dir DIR pattern=my_pattern"


def test_options_of_an_own_folder(tmp_path, programs):
    (tmp_path / "pattern").mkdir()
    (tmp_path / "pattern" / "my_pattern.yaml").write_text("_target_: sparsefront.patterns.element_wise.ElementWise\n")
    command = in_python(OWN_OPTIONS.replace("DIR", str(tmp_path))) + ["--cfg", "job"]
    done = programs.run(command[1:], cwd=tmp_path, env=environment())
    assert done.returncode == 0 and "ElementWise" in done.stdout, done.stderr


WITHOUT_GPU = {"optuna": ["hydra.sweeper.n_trials=2"], "submitit_local": ["hydra.launcher.gpus_per_node=0"]}


def plugin_commands() -> list[str]:
    return [command for command in commands() if "hydra/" in command]


@pytest.mark.parametrize("command", plugin_commands())
def test_plugins(tmp_path, programs, command):
    """With one point where they are listed: enough for a process that starts anew."""
    kind, name = re.search(r"hydra/(\w+)=(\w+)", command).groups()
    distribution, extra = PLUGINS[kind, name]
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: it comes with the extra {extra}")
    if name == "submitit_slurm":
        pytest.skip("needs Slurm: tests/slurm/run.sh")
    more = [
        f"results_dir={tmp_path / 'results'}",
        f"cache_dir={tmp_path / 'cache'}",
        *QUICK,
        *SMALL,
        *WITHOUT_GPU.get(name, ()),
    ]
    words = [word.replace("0.5,0.75,0.9", "0.5").split(",tile_wise")[0] for word in in_python(command)[1:]]
    done = programs.run([*words, *more], cwd=tmp_path, env=environment())
    assert done.returncode == 0 and re.search(r"[12] points? finished, 0 failed", done.stdout), done.stderr
    if name == "optuna":
        compared = programs.run(in_python(FRONT)[1:], cwd=tmp_path, env=environment())
        assert compared.returncode == 0 and "compare.html" in compared.stdout, compared.stderr


def make_commands() -> list[str]:
    return [command for command in commands() if command.startswith("make ") and command not in NOT_HERE]


def test_targets_of_make():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert {command.split()[1] for command in [*make_commands(), "make test-gpu"]} <= set(targets)


def in_python(command: str) -> list[str]:
    words = shlex.split(command)[1:]
    return [sys.executable, *(str(ROOT / word) if word in ("run.py", "compare.py") else word for word in words)]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
