"""Translations out of a network: what it must provide, greedy and beam search."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting

PAD, BOS, EOS, UNKNOWN = 0, 1, 2, 3
"""Tokens of vocabularies that are learnt here: behind the end of a sentence, its begin, its end, what no other token writes."""

VOCABULARY = "vocabulary_digest"
"""Buffer of a network: the bytes of `DataInfo.vocabulary_digest`, zeros where that is not known."""


class TranslationNetwork(nn.Module):
    """What a network provides to be trained on pairs of sentences and to translate.

    A sentence of the source is its tokens and `end`; one of the target begins with `start`. Behind the end stands `pad`, which
    `source_mask` is False for. Positions of the target behind `pad` may hold anything.

    Attributes:
        pad, start, end: those tokens of its vocabulary.
        encoder: the module that is given nothing but the source, and whose output the decoder reads.
        max_positions: the most tokens of a source or a target, with `start` or `end`; None where nothing bounds them.
    """

    pad: int = PAD
    start: int = BOS
    end: int = EOS
    encoder: nn.Module
    max_positions: int | None = None

    def note_vocabulary(self, digest: str | None) -> None:
        """Keep in the weights which vocabulary they are trained with: `DataInfo.vocabulary_digest`."""
        content = bytes.fromhex(digest or "").ljust(8, bytes(1))
        self.register_buffer(VOCABULARY, torch.tensor(list(content), dtype=torch.uint8))

    @abstractmethod
    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Logits of what follows each token of the target, given those before it: [B, T, vocabulary].

        Args:
            source: int64 [B, S].
            source_mask: bool [B, S], True for tokens.
            target: int64 [B, T], begins with `start`.
        """

    @abstractmethod
    def encode(self, source: Tensor, source_mask: Tensor) -> Any:
        """The state of a decoder that has not been given a token yet; arguments as of `forward`."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits, or log-probabilities, of what follows one more token of each row, [B, vocabulary], and the state behind it.

        Equal to column t of what `forward` gives for the tokens that were given so far.

        Args:
            tokens: int64 [B]; the first are `start`.
        """

    @abstractmethod
    def reorder(self, state: Any, indices: Tensor) -> Any:
        """The state of a batch whose rows are those at `indices`, int64 [rows]: rows may be repeated, left out, or more than
        before.
        """


# Its two parts as networks of their own, to be timed.


class SourceEncoder(nn.Module):
    """What a network does once for a batch of sentences: all tensors of the state of its decoder."""

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
    """What a network does for every token: tokens [rows] -> logits [rows, vocabulary], of hypotheses of one length.

    Args:
        net: in eval mode.
        source, source_mask: of the sentences, [B, S]; the first of the rows are the hypotheses of the first sentence.
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


# Greedy and beam search, a batch of sentences at once.

LONGEST = (2, 20)  # a translation has at most 2 * source + 20 tokens


@dataclass(frozen=True)
class Decoding:
    """How a translation is looked for.

    Attributes:
        beam: hypotheses of a sentence that are followed at once; 1 is greedy.
        length_penalty: a: the score of a finished one is the sum of its log-probabilities / tokens^a, its end among them.
        max_length: the most tokens of a translation, with its end.
    """

    beam: int
    length_penalty: float
    max_length: int


@torch.no_grad()
def translate(net: TranslationNetwork, source: Tensor, source_mask: Tensor, how: Decoding) -> Tensor:
    """The translation of each sentence that beam search finds, int64 [B, T], each ends with the network's `end` and is filled up
    with its `pad`.

    In every step the best `2 * beam` continuations of all hypotheses of a sentence are looked at: those among the first `beam`
    that end are finished, and the best `beam` that do not end are followed. A sentence is done with `beam` finished ones, of
    which the best by score is taken. What it gets does not depend on the other sentences of its batch.

    Args:
        net: in eval mode, of that interface.
        source, source_mask: as of `TranslationNetwork.forward`.
    Raises:
        InvalidSetting: log-probabilities that are not finite, which say nothing.
    """
    limits = (LONGEST[0] * source_mask.sum(1) + LONGEST[1]).clamp(max=how.max_length)  # [B]
    tokens, scores = _search(net, source, source_mask, how, limits, int(limits.max()), early=True)
    if not bool(scores.isfinite().all()):
        allowed = "must be finite: look for NaN in the weights, or values too large for the dtype (measure.dtype)"
        unfinished = int((~scores.isfinite()).sum())
        raise InvalidSetting("outputs", f"not finite for {unfinished} of {len(source)} sentences", allowed)
    return tokens


class WholeTranslation(nn.Module):
    """Beam search as a network of its own, to be timed: encoder and `how.max_length` steps, each of which gives a token of every
    sentence. It neither stops early nor looks at what it found, so that all of it can be one CUDA graph.

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
    """As of `translate`, and the score of each.

    Args:
        limits: of each sentence the most tokens, int64 [B]; `longest`: of them all.
        early: whether it ends as soon as all sentences are done, for which it waits for the device in every step.
    """
    rows, beam, device = len(source), how.beam, source.device
    every = torch.arange(rows, device=device)
    state = net.reorder(net.encode(source, source_mask), every.repeat_interleave(beam))
    tokens = source.new_full((rows, beam, longest + 1), net.pad)
    tokens[..., 0] = net.start
    sums = torch.full((rows, beam), -torch.inf, device=device)  # of log-probabilities
    sums[:, 0] = 0.0  # all hypotheses are equal at first: one of them is followed
    finished, scores = tokens.clone(), torch.full_like(sums, -torch.inf)
    for length in range(1, longest + 1):
        given, state = net.step(tokens[..., length - 1].flatten(), state)
        found = given.float().log_softmax(-1).unflatten(0, (rows, beam))  # [B, beam, V]
        for token in {net.pad, net.start} - {net.end}:  # a translation holds them nowhere
            found[..., token] = -torch.inf
        ends = found[..., net.end].clone()
        found = torch.where((limits <= length)[:, None, None], -torch.inf, found)
        found[..., net.end] = ends
        vocabulary = found.shape[-1]
        together = (sums[..., None] + found).flatten(1)
        best, places = together.topk(min(2 * beam, together.shape[1]), dim=1)  # [B, 2 * beam]
        parents, following = places // vocabulary, places % vocabulary
        ending = following == net.end

        done = scores.isfinite().sum(1, keepdim=True) >= beam
        allowed = ending & ~done & (torch.arange(best.shape[1], device=device) < beam)
        scored = torch.where(allowed, best / length**how.length_penalty, -torch.inf)
        ended = tokens[every[:, None], parents]
        ended[..., length] = net.end
        scores, kept = torch.cat([scores, scored], 1).topk(beam, dim=1)
        finished = torch.cat([finished, ended], 1)[every[:, None], kept]
        if early and bool(((scores.isfinite().sum(1) >= beam) | (limits <= length)).all()):
            break

        sums, kept = torch.where(ending, -torch.inf, best).topk(beam, dim=1)
        parents, following = parents.gather(1, kept), following.gather(1, kept)
        tokens = tokens[every[:, None], parents]
        tokens[..., length] = following
        state = net.reorder(state, (every[:, None] * beam + parents).flatten())
    return finished[:, 0, 1 : length + 1], scores[:, 0]
