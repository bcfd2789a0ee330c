"""What a search for a latency chooses from: per product of a network its patterns and sparsities, with times and errors."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

ROW_MAJOR = "row_major"  # how activations lie where the network begins and ends, and in every layer outside of blocks


@dataclass(frozen=True)
class Option:
    """A pattern at a sparsity, or dense.

    Args:
        pattern: number of the candidate; None = dense.
        sparsity: of every layer of the item; 0 = dense.
        error: that it causes on calibration inputs, summed over the item's layers and weighed by what errors of this item do to
            the loss; see `latency_search.errors` and `weighing`.
        times_us: layout of the activations -> microseconds of the fastest kernel.
        kernels: layout -> that kernel.
    """

    pattern: int | None
    sparsity: float
    error: float = 0.0
    times_us: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """Layers that are one product, as query, key and value are, and so have one pattern and sparsity.

    Args:
        layers: by their names in the network.
        chain: of blocks that are rewritten in one layout; None outside of them.
        options: the first one is dense.
    """

    layers: tuple[str, ...]
    chain: str | None
    options: Sequence[Option]

    def undominated(self, layout: str) -> list[int]:
        """Numbers of dense and of the options that no other one beats in time or error without losing in the other."""
        costs = [(option.times_us[layout], option.error) for option in self.options]
        return [
            number
            for number, (time_us, error) in enumerate(costs)
            if number == 0 or not any(us <= time_us and e <= error and (us, e) != (time_us, error) for us, e in costs)
        ]


@dataclass(frozen=True)
class ChoiceTable:
    """A network's items in the order of their calls.

    Args:
        patterns: of the candidates, in words.
        layouts_us: chain -> layout -> microseconds that this layout adds to the chain, in all that is no product: changes of
            layout where the chain begins and ends, and its norms. 0 for one of them.
        rest_us: microseconds of the network beside products and `layouts_us`.
        dense_us: of the dense network in its fastest version.
        seconds: that it took to measure.
        dense_versions: of the dense network that a measurement times; see `measure.search.Execution.versions`.
    """

    patterns: Sequence[str]
    items: Sequence[Item]
    layouts_us: Mapping[str, Mapping[str, float]]
    rest_us: float
    dense_us: float
    seconds: float = 0.0
    dense_versions: Sequence[str] = ()

    def time_us(self, assignment: "Assignment") -> float:
        """Predicted microseconds of the network."""
        products = sum(
            item.options[option].times_us[assignment.layout_of(item)]
            for item, option in zip(self.items, assignment.options, strict=True)
        )
        return (
            self.rest_us
            + products
            + sum(self.layouts_us[chain][layout] for chain, layout in assignment.layouts.items())
        )

    def error(self, assignment: "Assignment") -> float:
        """The sum of the errors."""
        return sum(item.options[option].error for item, option in zip(self.items, assignment.options, strict=True))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ChoiceTable":
        """What `to_json` gave."""
        items = [
            Item(tuple(item["layers"]), item["chain"], [Option(**option) for option in item["options"]])
            for item in content["items"]
        ]
        return cls(**{**content, "items": items})


@dataclass(frozen=True)
class Assignment:
    """A choice for the whole network.

    Args:
        options: per item the number of its option.
        layouts: chain -> layout.
    """

    options: tuple[int, ...]
    layouts: Mapping[str, str] = field(default_factory=dict)

    def layout_of(self, item: Item) -> str:
        """How activations lie in an item."""
        return ROW_MAJOR if item.chain is None else self.layouts[item.chain]
