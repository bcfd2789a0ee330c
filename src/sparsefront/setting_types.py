"""Each value of a configuration by its own type and range, whatever stands beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from sparsefront.config import GROUPS, STAGES
from sparsefront.declared.types import Fraction, OneOrMore
from sparsefront.declared.values import checked_values
from sparsefront.errors import InvalidSetting
from sparsefront.settings import typed_settings

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's generators take
# What the typed root cannot say: OmegaConf knows types, and no ranges.
ROOT_TYPES = {
    "seed": Seed,
    "recovery.seed": Seed,
    "sparsity": Annotated[Fraction, Field(description="the fraction of zeros")],
    "stages": OneOrMore[Literal[STAGES]],
}


def check_types(config: DictConfig, choices: dict[str, str]) -> None:
    """Each value of a configuration by its own type and range alone: what goes together is not looked at, nothing is built.

    Args:
        choices: group -> the name of its option.
    Raises:
        InvalidSetting: the first value that no other setting could make right.
    """
    check_root_types(config)
    for group in GROUPS:
        with told_where_typed(config):
            typed_settings(group, config[group], choices.get(group))


def check_root_types(config: DictConfig) -> None:
    """Those of the root's keys.

    Raises:
        InvalidSetting: the first value of a wrong type or out of its range.
    """
    checked_values({key: plain(OmegaConf.select(config, key)) for key in ROOT_TYPES}, ROOT_TYPES)


@contextmanager
def told_where_typed(config: DictConfig) -> Iterator[None]:
    """A pattern reads the root's granularity: a complaint about it names the key that the user typed."""
    try:
        yield
    except InvalidSetting as error:
        typed_at_root = error.key == "pattern.granularity" and config.granularity is not None
        raise InvalidSetting("granularity", error.value, error.allowed) if typed_at_root else error from error


def plain(node: Any) -> Any:
    """A node of the configuration as Python's own containers; anything else as it is."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
