"""The base of translation models: building, and checks of checkpoints and sentences."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import Model
from sparsefront.models.checkpoint import load_weights, read_weights, weights_file
from sparsefront.tasks.decoding import VOCABULARY, TranslationNetwork

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


class TranslationModel(Model):
    """A translation model of this repository, with random weights or those of a local checkpoint.

    Attributes:
        path: local checkpoint; None = random weights.
    """

    kinds: ClassVar[tuple[str, ...]] = ("translation",)
    path: str | None

    @abstractmethod
    def network(self, info: "DataInfo") -> TranslationNetwork:
        """Build the network with random weights."""

    def check(self) -> None:
        if self.path is not None:
            weights_file(self.path)

    def build(self, info: "DataInfo") -> nn.Module:
        net = self.network(info)
        if self.path is not None:
            weights = read_weights(self.path)
            require_vocabulary(weights, net, self.path)
            load_weights(net, weights, head="", path=self.path)
        return net

    def skeleton(self, info: "DataInfo") -> nn.Module:
        with torch.device("meta"):
            return self.network(info)

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        return self.network(info)


def check_positions(info: "DataInfo", positions: int) -> None:
    """Check that the sentences of a data set fit into the positions.

    Raises:
        InvalidSetting: key `max_positions`: they do not.
    """
    if info.sequence_length is not None and info.sequence_length > positions:
        allowed = f"sentences of the dataset have up to dataset.max_length={info.sequence_length} tokens: give as many positions"
        raise InvalidSetting("max_positions", positions, allowed)


def require_vocabulary(weights: Mapping[str, Tensor], net: TranslationNetwork, path: str) -> None:
    """Check that a checkpoint was trained with the data's vocabulary; accepts checkpoints that do not say.

    Raises:
        InvalidSetting: key `path`: it is of another data set or of other languages.
    """
    stored, own = weights.get(VOCABULARY), net.state_dict()[VOCABULARY]
    if stored is None or not stored.any() or not own.any() or torch.equal(stored, own):
        return
    allowed = "was trained with the vocabulary of other data: its tokens mean other words"
    raise InvalidSetting("path", path, f"{allowed}; take that dataset, its languages and its size of the vocabulary")
