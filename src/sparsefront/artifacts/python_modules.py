"""Where a module's source lies, found without importing it, and which modules count by version instead."""

import functools
import importlib.util
import sys
import sysconfig
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

OWN = frozenset({"sparsefront", "sparsefront_kernels"})
# Covered by their versions (see `digest.versions`), also where they are imported from a checkout.
LIBRARIES = frozenset(
    "torch torchvision torchmetrics triton pytorch_lightning lightning lightning_fabric transformers tokenizers datasets "
    "huggingface_hub safetensors numpy pandas sklearn scipy PIL hydra omegaconf quack cutlass".split()
)


@dataclass(frozen=True)
class Module:
    """A module on disk.

    Args:
        name: dotted.
        file: its source, or its compiled extension; None for a package without `__init__`.
        folders: where the submodules of a package lie; empty for a plain module.
    """

    name: str
    file: Path | None
    folders: tuple[Path, ...] = ()

    @property
    def package(self) -> str:
        """The package that its relative imports start from; "" for a module in none."""
        return self.name if self.folders else self.name.rpartition(".")[0]


@functools.cache
def find_module(name: str) -> Module | None:
    """The module as it is loaded or would be; None where there is none of this name, or none with a file.

    It is looked up once per process: an edited file counts from the next one on, as the import of it does.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None):
        return Module(name, Path(loaded.__file__), tuple(map(Path, getattr(loaded, "__path__", ()))))
    parent, _, last = name.rpartition(".")
    if not parent:
        return _find_top(name)
    above = find_module(parent)
    return None if above is None else _find_in(above.folders, name, last)


@functools.cache
def counts_by_version(top: str) -> bool:
    """Whether a top-level module is one of Python's or of `LIBRARIES`, or was installed, other than as editable."""
    if top in OWN:
        return False
    if top in sys.stdlib_module_names or top in LIBRARIES or (module := find_module(top)) is None:
        return True
    places = module.folders if module.file is None else (module.file,)
    return all(any(place.is_relative_to(folder) for folder in _installed_folders()) for place in places)


def _find_top(name: str) -> Module | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # it is loaded and comes from nowhere
        return None
    if spec is None:
        return None
    folders = tuple(map(Path, spec.submodule_search_locations or ()))
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return Module(name, file, folders) if file is not None or folders else None


def _find_in(folders: tuple[Path, ...], name: str, last: str) -> Module | None:
    """The submodule in the folders of its package, in the order in which Python looks."""
    for folder in folders:
        inside = folder / last
        if (inside / "__init__.py").is_file():
            return Module(name, inside / "__init__.py", (inside,))
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            if (file := folder / f"{last}{suffix}").is_file():
                return Module(name, file)
    inside = tuple(folder / last for folder in folders if (folder / last).is_dir())
    return Module(name, None, inside) if inside else None


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    found = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    return tuple(found | {folder.resolve() for folder in found})
