"""Python packages that only some settings need: missed before a run starts, not when it would use them."""

import importlib.util

from sparsefront.errors import InvalidSetting, Obstacle

# packages that are installed under another name than they are imported by
PIP_NAMES = {"sklearn": "scikit-learn", "pytorch_lightning": "pytorch-lightning"}
OURS = ("sparsefront", "sparsefront_kernels")


def require_package(package: str, *, key: str, value: object, instead: str) -> None:
    """Require the package of a setting; it is looked for, not imported.

    Args:
        package: its name, for import and for pip alike.
        key, value: the setting that needs it.
        instead: what to choose without it.
    Raises:
        InvalidSetting: it is not installed; says how to install it, and `instead`.
    """
    if importlib.util.find_spec(package) is None:
        allowed = f"the package {package} is not installed: pip install {package}, or choose {instead}"
        raise InvalidSetting(key, value, allowed)


def missing_package(error: ModuleNotFoundError) -> Obstacle | None:
    """The same in one line, with what installs it; None for a module of ours, whose absence is a bug."""
    package = (error.name or "").partition(".")[0]
    if not package or package in OURS:
        return None
    package = PIP_NAMES.get(package, package)
    return Obstacle(f"Python package {package}", None, f"is not installed: pip install {package}")
