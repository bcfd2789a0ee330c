"""Folders and modules of src/sparsefront, and modules of kernels/, import each other in one direction only."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import sparsefront_kernels

import sparsefront

ROOT, KERNELS = (Path(package.__file__).parent for package in (sparsefront, sparsefront_kernels))


def part_of(module: str) -> str | None:
    """The folder at the top of the package, or the module there, that holds a dotted name; None outside of the package."""
    package, *inside = module.split(".")
    if package != "sparsefront" or not inside:
        return None
    return inside[0] if (ROOT / inside[0]).is_dir() or (ROOT / f"{inside[0]}.py").is_file() else None


def module_of(name: str, root: Path = ROOT) -> str | None:
    """The module that holds a dotted name, which may be its own; None outside of the package."""
    package, *inside = name.split(".")
    while package == root.name and inside:
        if root.joinpath(*inside).with_suffix(".py").is_file():
            return ".".join(inside)
        inside.pop()
    return None


@cache
def imported(file: Path) -> list[tuple[int, str]]:
    """Line and dotted name of all that a file imports: inside functions and for type checkers as well."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{file}:{node.lineno}: a relative import"
            names += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
    return names


def import_graph(part_of: Callable[[str], str | None] = part_of, root: Path = ROOT) -> dict[str, dict[str, list[str]]]:
    """Part -> the other parts that it imports -> where. A folder counts with the folders inside it."""
    graph: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(root.rglob("*.py")):
        place = file.relative_to(root)
        here = part_of(".".join((root.name, *place.with_suffix("").parts)))
        if here in (None, "__init__"):  # the names that the package offers, imported when they are used
            continue
        for line, module in imported(file):
            if (there := part_of(module)) not in (None, here):
                graph[here][there].append(f"{place}:{line}")
    return graph


def circle(graph: dict[str, dict[str, list[str]]]) -> list[str]:
    """The first circle, its start at both ends; empty where there is none."""
    finished: set[str] = set()

    def walk(part: str, path: list[str]) -> list[str]:
        if part in path:
            return [*path[path.index(part) :], part]
        if part in finished:
            return []
        for there in graph.get(part, {}):
            if found := walk(there, [*path, part]):
                return found
        finished.add(part)
        return []

    return next((found for part in sorted(graph) if (found := walk(part, []))), [])


@pytest.mark.parametrize(
    ("part_of", "root"), [(part_of, ROOT), (module_of, ROOT), (partial(module_of, root=KERNELS), KERNELS)]
)
def test_nothing_imports_itself_in_a_circle(part_of, root):
    graph = import_graph(part_of, root)
    found = circle(graph)
    steps = [f"{here} -> {there}: {', '.join(graph[here][there])}" for here, there in zip(found, found[1:])]
    assert not found, "\n".join(steps)


def test_library_knows_no_program():
    program = {"config", "stages", "pipeline", "runs", "verify", "cache", "search"}
    graph = import_graph()
    reached, left = set(), ["pruning", "recovery", "inference", "export"]
    assert set(left) <= graph.keys()
    while left:
        part = left.pop()
        if part not in reached:
            reached.add(part)
            left.extend(graph.get(part, {}))
    assert not reached & program
    for part in ("pruning", "recovery", "inference", "export", "measure"):
        for file in (ROOT / part).rglob("*.py"):
            assert not [name for _, name in imported(file) if name.startswith("hydra")], file


def imported_first(module: str) -> set[str]:
    """All that is imported with a module of the package, before any of its functions is called: modules, ours and others'."""
    found, left = set(), [f"sparsefront.{module}"]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if (here := module_of(name)) is None:
            continue
        for node in ast.parse(ROOT.joinpath(*here.split(".")).with_suffix(".py").read_text()).body:
            if isinstance(node, ast.ImportFrom):
                left += [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
    return found


@pytest.mark.parametrize("module", ["__main__", "cache.__main__", "verify.__main__"])
def test_commands_read_arguments_before_torch(module):
    packages = {name.split(".")[0] for name in imported_first(module)}
    assert "sparsefront" in packages and not packages & {"torch", "pytorch_lightning", "sparsefront_kernels"}


SLOW = {
    "pytorch_lightning",
    "torchmetrics",
    "transformers",
    "matplotlib",
    "torchvision",
    "scipy",
    "pandas",
    "sklearn",
    "torch._dynamo",
    "triton",
}
"""Libraries that take seconds to import."""
PRUNE = """
import torch.nn as nn
import sparsefront as sf
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
sf.prune(net, pattern="tile_wise", sparsity=0.75, granularity=16)
"""
EVERY_RECOVERY = """
import importlib, yaml
from sparsefront.options import CONF
for file in (CONF / "recovery").glob("*.yaml"):
    importlib.import_module(yaml.safe_load(file.read_text())["_target_"].rpartition(".")[0])
"""
COMPARE = "import sparsefront.results.compare"
RUN = "import sys; from sparsefront.__main__ import run; sys.argv = ['run.py']; run(%r)"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (f"{PRUNE}\nassert not {{'hydra', 'omegaconf'}} & {{*sys.modules}}\n{EVERY_RECOVERY}{COMPARE}", SLOW),
        (RUN % ["sparsity=1.5"], SLOW | {"torch"}),
        (RUN % ["recipe.epochs=0", "recovery=none", "trainer.accelerator=cpu"], SLOW),  # contradicts the model
    ],
)
def test_slow_libraries_are_imported_when_used(code, absent):
    report = f"import atexit, sys; atexit.register(lambda: print('loaded:', {absent!r} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", f"{report}\n{code}"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded: set()", done.stdout + done.stderr
    assert "Traceback" not in done.stderr
