"""Translations out of a network: what it must provide, greedy and beam search."""

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3
"""Tokens of every vocabulary of translation: behind the end of a sentence, its begin, its end, what no other token writes."""


class TranslationNetwork(nn.Module):
    """What a network provides to be trained on pairs of sentences and to translate.

    A sentence of the source is its tokens and `EOS`; one of the target begins with `BOS`. Behind the end stands `PAD`, which
    `source_mask` is False for. Positions of the target behind `PAD` may hold anything.

    Attributes:
        max_positions: the most tokens of a source or a target, with `BOS` or `EOS`; None where nothing bounds them.
    """

    max_positions: int | None = None

    @abstractmethod
    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Logits of what follows each token of the target, given those before it: [B, T, vocabulary].

        Args:
            source: int64 [B, S].
            source_mask: bool [B, S], True for tokens.
            target: int64 [B, T], begins with `BOS`.
        """

    @abstractmethod
    def encode(self, source: Tensor, source_mask: Tensor) -> Any:
        """The state of a decoder that has not been given a token yet; arguments as of `forward`."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits, or log-probabilities, of what follows one more token of each row, [B, vocabulary], and the state behind it.

        Equal to column t of what `forward` gives for the tokens that were given so far.

        Args:
            tokens: int64 [B]; the first are `BOS`.
        """

    @abstractmethod
    def reorder(self, state: Any, indices: Tensor) -> Any:
        """The state of a batch whose rows are those at `indices`, int64 [rows]: rows may be repeated, left out, or more than
        before.
        """
