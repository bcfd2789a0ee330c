"""What a recovery is: digests of all that defines it, so that it goes on from no other one's state."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn

from sparsefront.artifacts.digest import digest
from sparsefront.export.tensors_digest import tensors_digest
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.recovery.base import LayerMasks, Recovery, RecoverySetup

Identity = dict[str, str]
"""What is compared -> its digest."""


def identity_of(
    nets: Mapping[str, nn.Module], masks: LayerMasks, layout: MaskLayout, recovery: Recovery, setup: RecoverySetup
) -> Identity:
    """Of the weights, masks and settings that a recovery begins with. Its data and its loss are not compared.

    Args:
        nets: what each network is called -> the network.
        masks: of the first round.
    """
    pruning = setup.pruning
    parts = (pruning.pattern, pruning.importance, pruning.allocation, pruning.schedule)
    return {
        **{name: tensors_digest(net.state_dict()) for name, net in nets.items()},
        "masks": tensors_digest(masks),
        "pruning": digest([pruning.sparsity, _layout(layout), *map(_settings, parts)]),
        "recovery": digest([_settings(recovery), recovery.fingerprint()]),
        "recipe": digest(_settings(setup.recipe)),
        "trainer": digest(setup.trainer.cache_key()),
    }


def _layout(layout: MaskLayout) -> list[Any]:
    orders = {layer: tensors_digest(order.orders()) for layer, order in layout.permutations.items()}
    patterns = {layer: _settings(pattern) for layer, pattern in (layout.patterns or {}).items()}
    return [orders, layout.sparsities, patterns]


def _settings(part: object) -> list[Any]:
    kind = type(part)
    return [
        f"{kind.__module__}.{kind.__qualname__}",
        dataclasses.asdict(part) if dataclasses.is_dataclass(part) else {},
    ]
