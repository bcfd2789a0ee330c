"""The package stands alone: it needs torch and, where its kernels run, Triton, and nothing of sparsefront."""

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sparsefront_kernels
from program_server import ProgramServer

PACKAGE = Path(sparsefront_kernels.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
ALLOWED = {"torch", "triton", "sparsefront_kernels"} | sys.stdlib_module_names


def imported_modules(source: Path) -> set[str]:
    """Top-level names of everything that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: imports are written in full here"
            found.add(node.module.split(".")[0])
    return found


def test_imports_of_the_standard_library_alone():
    assert {source: more for source in SOURCES if (more := imported_modules(source) - ALLOWED)} == {}


def test_folder_above_is_no_package():
    """A package called `kernels` would shadow an installed one that transformers looks for."""
    assert not (PACKAGE.parent / "__init__.py").exists()


@pytest.fixture(scope="module")
def with_torch() -> Iterator[ProgramServer]:
    """Starts programs in processes that have torch imported, which the package needs, and nothing else."""
    server = ProgramServer(imported=("torch",))
    yield server
    server.close()


def run_python(server: ProgramServer, code: str) -> str:
    """Run code in a process that sees this folder of kernels and neither Triton's interpreter nor pytest."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    done = server.run(["-c", code], env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_alone_and_without_triton(with_torch):
    loaded = run_python(
        with_torch,
        "import sys; sys.modules['triton'] = None; import sparsefront_kernels; "
        "print([name for name in sys.modules if name.split('.')[0] in ('sparsefront', 'lightning', 'hydra')])",
    )
    assert loaded.strip() == "[]"


def test_late_interpreter_is_unsupported(with_torch):
    """Kernels that were loaded for a GPU cannot be interpreted any more, and say so instead of failing inside."""
    reason = run_python(
        with_torch,
        "import os, torch, sparsefront_kernels as kernels\n"
        "import sparsefront_kernels.triton_device\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "stored = kernels.FORMATS['n_m'].from_dense(torch.ones(4, 4), torch.eye(4).bool(), n=1, m=4)\n"
        "problem = kernels.Problem(4, 4, 4, torch.float32, 'cpu')\n"
        "print(kernels.entry('n_m_rebuilt').unsupported_reason(stored, problem))",
    )
    assert "after the kernels had been loaded" in reason


def test_readme_examples_run(with_torch):
    """What a newcomer copies first."""
    text = (PACKAGE.parent / "README.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    first, second, _ = blocks  # the third is test_example_family's
    assert all("gathered_reference" in run_python(with_torch, code) for code in (first, second))
