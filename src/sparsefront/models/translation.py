"""What networks that translate are checked for: the vocabulary that their weights were trained with, and their positions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.decoding import VOCABULARY, TranslationNetwork

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


def check_positions(info: "DataInfo", positions: int) -> None:
    """Check that the sentences of a data set find room.

    Raises:
        InvalidSetting: key `max_positions`.
    """
    if info.sequence_length is not None and info.sequence_length > positions:
        allowed = f"sentences of the dataset have up to dataset.max_length={info.sequence_length} tokens: give as many positions"
        raise InvalidSetting("max_positions", positions, allowed)


def require_vocabulary(weights: Mapping[str, Tensor], net: TranslationNetwork, path: str) -> None:
    """Check that a checkpoint was trained with the vocabulary of the data; one that does not say so is taken as it is.

    Raises:
        InvalidSetting: key `path`: with that of another data set, or other languages, of however many tokens.
    """
    stored, own = weights.get(VOCABULARY), net.state_dict()[VOCABULARY]
    if stored is None or not stored.any() or not own.any() or torch.equal(stored, own):
        return
    allowed = "was trained with the vocabulary of other data: its tokens mean other words"
    raise InvalidSetting("path", path, f"{allowed}; take that dataset, its languages and its size of the vocabulary")
