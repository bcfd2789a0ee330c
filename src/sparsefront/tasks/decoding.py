"""Translation: the network interface, greedy and beam search."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting

PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3
"""Tokens of vocabularies learned here: padding, beginning and end of a sentence, and unknown text."""

VOCABULARY = "vocabulary_digest"
"""Buffer with the bytes of `DataInfo.vocabulary_digest`; zeros if unknown."""


class TranslationNetwork(nn.Module):
    """The interface of networks that are trained on sentence pairs and translate.

    A source sentence is its tokens and `end`; a target begins with `start`. Both are followed by `pad`, for which
    `source_mask` is False. The network's outputs at padded target positions are ignored.

    Attributes:
        pad, start, end: token ids of its vocabulary.
        encoder: the module whose only input is the source, and whose output the decoder reads.
        max_positions: maximum number of tokens of a source or target, including `start` or `end`; None = unlimited.
    """

    pad: int = PAD
    start: int = BOS
    end: int = EOS
    encoder: nn.Module
    max_positions: int | None = None

    def note_vocabulary(self, digest: str | None) -> None:
        """Store the digest of the training vocabulary in the weights: `DataInfo.vocabulary_digest`."""
        content = bytes.fromhex(digest or "").ljust(8, bytes(1))
        self.register_buffer(VOCABULARY, torch.tensor(list(content), dtype=torch.uint8))

    @abstractmethod
    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Logits of the token after each target token, given those before it: [B, T, vocabulary].

        Args:
            source: int64 [B, S].
            source_mask: bool [B, S], True for tokens.
            target: int64 [B, T], begins with `start`.
        """

    @abstractmethod
    def encode(self, source: Tensor, source_mask: Tensor) -> Any:
        """The decoder state before the first token; arguments as in `forward`."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Feed one more token per row; returns logits or log-probabilities of the next one, [B, vocabulary], and the new state.

        Equal to column t of `forward` for the tokens so far.

        Args:
            tokens: int64 [B]; the first are `start`.
        """

    @abstractmethod
    def reorder(self, state: Any, indices: Tensor) -> Any:
        """The state with rows selected by `indices`, int64 [rows], which may repeat or omit rows of the batch."""


class SourceEncoder(nn.Module):
    """The part that runs once per batch of sentences; returns all tensors of the decoder state."""

    def __init__(self, net: TranslationNetwork) -> None:
        super().__init__()
        self.net = net

    def forward(self, source: Tensor, source_mask: Tensor) -> list[Tensor]:
        return _tensors(self.net.encode(source, source_mask))


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = state if isinstance(state, list | tuple) else vars(state).values() if hasattr(state, "__dict__") else ()
    return [tensor for part in parts for tensor in _tensors(part)]


class DecoderStep(nn.Module):
    """The part that runs for every token: tokens [rows] -> logits [rows, vocabulary], for hypotheses of equal length.

    Args:
        net: in eval mode.
        source, source_mask: of the sentences, [B, S]; consecutive rows are hypotheses of the same sentence.
        given: the tokens of each hypothesis so far, int64 [rows, length], `start` first.
    """

    def __init__(self, net: TranslationNetwork, source: Tensor, source_mask: Tensor, given: Tensor) -> None:
        super().__init__()
        self.net = net
        rows = torch.arange(len(source), device=source.device).repeat_interleave(len(given) // len(source))
        with torch.no_grad():
            state = net.reorder(net.encode(source, source_mask), rows)
            for tokens in given.unbind(1):
                _, state = net.step(tokens, state)
        self._state = state

    def forward(self, tokens: Tensor) -> Tensor:
        return self.net.step(tokens, self._state)[0]


LONGEST = (2, 20)  # a translation has at most 2 * source + 20 tokens


@dataclass(frozen=True)
class Decoding:
    """Decoding settings.

    Attributes:
        beam: number of hypotheses per sentence; 1 is greedy.
        length_penalty: a: a finished hypothesis scores the sum of its log-probabilities / tokens^a, including its end.
        max_length: maximum number of tokens of a translation, including its end.
    """

    beam: int
    length_penalty: float
    max_length: int


@torch.no_grad()
def translate(net: TranslationNetwork, source: Tensor, source_mask: Tensor, how: Decoding) -> Tensor:
    """Translate each sentence by beam search; returns int64 [B, T], each row ending with the network's `end`, then `pad`.

    Each step considers the best `2 * beam` continuations of all hypotheses of a sentence: those among the first `beam` that end
    are finished, and the best `beam` that do not end continue. A sentence is done with `beam` finished hypotheses, of which
    the best is returned. The result does not depend on the other sentences of the batch.

    Args:
        net: in eval mode.
        source, source_mask: as in `TranslationNetwork.forward`.
    Raises:
        InvalidSetting: log-probabilities are not finite.
    """
    limits = (LONGEST[0] * source_mask.sum(1) + LONGEST[1]).clamp(max=how.max_length)  # [B]
    tokens, scores = _search(net, source, source_mask, how, limits, int(limits.max()), early=True)
    if not bool(scores.isfinite().all()):
        allowed = "must be finite: look for NaN in the weights, or values too large for the dtype (measure.dtype)"
        unfinished = int((~scores.isfinite()).sum())
        raise InvalidSetting("outputs", f"not finite for {unfinished} of {len(source)} sentences", allowed)
    return tokens


class WholeTranslation(nn.Module):
    """Beam search as a network, for timing: encoder and `how.max_length` steps, each of which adds a token to every sentence. It
    neither stops early nor reads its results, so all of it can be one CUDA graph.

    Args:
        net: in eval mode.
    """

    def __init__(self, net: TranslationNetwork, how: Decoding) -> None:
        super().__init__()
        self.net, self.how = net, how

    @torch.no_grad()
    def forward(self, source: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The best translations, int64 [B, max_length], and their scores [B]."""
        longest = self.how.max_length
        limits = source.new_full((len(source),), longest)
        return _search(self.net, source, source_mask, self.how, limits, longest, early=False)


def _search(
    net: TranslationNetwork,
    source: Tensor,
    source_mask: Tensor,
    how: Decoding,
    limits: Tensor,
    longest: int,
    *,
    early: bool,
) -> tuple[Tensor, Tensor]:
    """See `translate`; also returns the score of each translation.

    Args:
        limits: maximum number of tokens of each sentence, int64 [B]; `longest`: their maximum.
        early: stop when all sentences are done, which synchronizes with the device in every step.
    """
    rows, beam, device = len(source), how.beam, source.device
    every = torch.arange(rows, device=device)
    state = net.reorder(net.encode(source, source_mask), every.repeat_interleave(beam))
    tokens = source.new_full((rows, beam, longest + 1), net.pad)
    tokens[..., 0] = net.start
    sums = torch.full((rows, beam), -torch.inf, device=device)  # log-probabilities
    sums[:, 0] = 0.0  # all hypotheses are equal at first: continue only one
    finished, scores = tokens.clone(), torch.full_like(sums, -torch.inf)
    for length in range(1, longest + 1):
        logits, state = net.step(tokens[..., length - 1].flatten(), state)
        log_probs = logits.float().log_softmax(-1).unflatten(0, (rows, beam))  # [B, beam, V]
        for token in {net.pad, net.start} - {net.end}:  # never part of a translation
            log_probs[..., token] = -torch.inf
        ends = log_probs[..., net.end].clone()
        log_probs = torch.where((limits <= length)[:, None, None], -torch.inf, log_probs)
        log_probs[..., net.end] = ends
        vocabulary = log_probs.shape[-1]
        together = (sums[..., None] + log_probs).flatten(1)
        best, places = together.topk(min(2 * beam, together.shape[1]), dim=1)  # [B, 2 * beam]
        parents, following = places // vocabulary, places % vocabulary
        ending = following == net.end

        done = scores.isfinite().sum(1, keepdim=True) >= beam
        allowed = ending & ~done & (torch.arange(best.shape[1], device=device) < beam)
        scored = torch.where(allowed, best / length**how.length_penalty, -torch.inf)
        ended = tokens[every[:, None], parents]
        ended[..., length] = net.end
        scores, top_indices = torch.cat([scores, scored], 1).topk(beam, dim=1)
        finished = torch.cat([finished, ended], 1)[every[:, None], top_indices]
        if early and bool(((scores.isfinite().sum(1) >= beam) | (limits <= length)).all()):
            break

        sums, top_indices = torch.where(ending, -torch.inf, best).topk(beam, dim=1)
        parents, following = parents.gather(1, top_indices), following.gather(1, top_indices)
        tokens = tokens[every[:, None], parents]
        tokens[..., length] = following
        state = net.reorder(state, (every[:, None] * beam + parents).flatten())
    return finished[:, 0, 1 : length + 1], scores[:, 0]
