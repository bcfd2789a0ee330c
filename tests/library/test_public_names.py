"""What `import sparsefront as sf` offers, and who may know of the program."""

import ast
import subprocess
import sys
import typing
from pathlib import Path

import sparsefront as sf
from sparsefront.options import option_classes
from sparsefront.public_names import ORIGINS, PACKAGES

SOURCE = Path(sf.__file__).parent
LIBRARY = ("pruning/", "recovery/", "inference/", "export/", "measure/")
PROGRAM = ("config/", "stages/", "verify/", "pipeline.py", "runs.py")


def test_importing_the_package_loads_no_torch():
    code = "import sys, sparsefront; print([name for name in ('torch', 'hydra', 'pytorch_lightning') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there_documented_and_typed():
    assert sorted(sf.__all__) == dir(sf) == sorted([*ORIGINS, *PACKAGES])
    for name in ORIGINS:
        value = getattr(sf, name)
        assert value.__doc__, name
        if not isinstance(value, type):
            hints = typing.get_type_hints(value)
            code = value.__code__
            named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            assert {*named, "return"} <= hints.keys(), name
            assert all(f"{argument}" in value.__doc__ for argument in named), name


def test_every_option_is_offered_under_its_name():
    conf = SOURCE.parents[1] / "conf"
    for package, group in {
        "patterns": "pattern",
        "importance": "importance",
        "allocation": "allocation",
        "schedule": "schedule",
        "recovery": "recovery",
    }.items():
        offered = option_classes(f"sparsefront.{package}")
        assert set(offered) == {file.stem for file in (conf / group).glob("*.yaml")}
        for found in offered.values():
            assert getattr(getattr(sf, package), found.__name__) is found


def program_files() -> list[Path]:
    return [file for file in sorted(SOURCE.rglob("*.py")) if not str(file.relative_to(SOURCE)).startswith(PROGRAM)]


def test_only_the_program_knows_of_experiments_and_of_hydras_state():
    below = ("sparsefront.stages", "sparsefront.pipeline", "sparsefront.config", "sparsefront.runs", "hydra")
    for file in program_files():
        place, nodes = str(file.relative_to(SOURCE)), list(ast.walk(ast.parse(file.read_text())))
        named = {node.id for node in nodes if isinstance(node, ast.Name)}
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom | ast.Import)]
        imported = {alias.name for node in imports for alias in node.names}
        assert not {"Experiment", "HydraConfig"} & (named | imported), place
        modules = {node.module for node in imports if isinstance(node, ast.ImportFrom)}
        assert not place.startswith(LIBRARY) or not {name for name in modules if name.startswith(below)}, place


def test_no_field_is_typed_any():
    for file in sorted(SOURCE.rglob("*.py")):
        if (
            file.name == "schema.py"
        ):  # the fields of config/schema.py are nodes of YAML: Hydra has no other word for any option
            continue
        classes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        fields = [field for node in classes for field in node.body if isinstance(field, ast.AnnAssign)]
        assert not [ast.unparse(field.target) for field in fields if ast.unparse(field.annotation) == "Any"], file
