"""What the two hierarchical patterns share: whole groups go first, then 2:4 halves what is left."""

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.structure.window import Window

WINDOW = Window(2, 4)


def outer_sparsity(sparsity: float) -> float:
    """How much the groups take, so that 2:4 inside the rest makes `sparsity`: 1 - s = (1 - s1) / 2."""
    return max(0.0, 2 * sparsity - 1)


def check_halved_sparsity(pattern: str, sparsity: float) -> None:
    """Raise InvalidSetting below a half, which 2:4 takes of every group that stays."""
    if sparsity < WINDOW.sparsity:
        raise InvalidSetting("sparsity", sparsity, f"{pattern} keeps 2 of 4 in every group: at least {WINDOW.sparsity}")


def halved_unsupported_reason(sparsity: float) -> str | None:
    """Why no layer can have this sparsity, or None: an allocation may ask for less in a layer than in the network."""
    return None if sparsity >= WINDOW.sparsity else f"sparsity {sparsity:g} is below the {WINDOW.sparsity} of 2:4"
