"""LSTM translation model with attention: a bidirectional encoder and an attentional decoder."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.checkpoint import weights_fingerprint
from sparsefront.models.linears import as_linears
from sparsefront.models.recurrent import LstmSteps, State, side_by_side
from sparsefront.models.translation import TranslationModel
from sparsefront.settings_class import settings_class
from sparsefront.tasks.decoding import PAD, TranslationNetwork

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo

SIZES = ("width", "layers", "dropout")
LARGEST = 0.1  # bound of initial weights, as in Luong's code


@settings_class()
class LstmNmt(TranslationModel):
    """Settings of model lstm_nmt.

    Args:
        width: of embeddings, LSTM stacks and attention output.
        layers: of each stack.
        dropout: on inputs of each LSTM and of the logits, but not on recurrent connections.
        path: local checkpoint; null = random weights.
        prune_head: also prune the output projection.
    """

    fingerprinted: ClassVar[frozenset[str]] = frozenset({*SIZES, "path"})

    width: PositiveInt = 512
    layers: PositiveInt = 2
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    path: str | None = None
    prune_head: bool = False

    @property
    def variant(self) -> str | None:
        """The sizes that differ from the defaults: `width 64 layers 1`."""
        sizes = [f"{key} {getattr(self, key)}" for key in SIZES if getattr(self, key) != getattr(type(self), key)]
        return " ".join(sizes) or None

    def fingerprint(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in SIZES}
        return {
            "model": "lstm_nmt",
            **own,
            "weights": "random" if self.path is None else weights_fingerprint(self.path),
        }

    def network(self, info: "DataInfo") -> "LstmTranslator":
        return LstmTranslator(self, info)

    def prunable(self, net: nn.Module) -> list[str]:
        """All gate matrices, and the Linears of attention and initial state; the output projection only with prune_head."""
        inside = ("encoder", "decoder", "head") if self.prune_head else ("encoder", "decoder")
        return linear_and_conv_layers(net, inside=inside)


class LstmTranslator(TranslationNetwork):
    """After Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015, as in the code of the
    Tile-Wise paper: general scores and input feeding.

    Departure: a Linear computes the decoder's initial state from the final states of both encoder stacks, instead of a copy.
    """

    def __init__(self, settings: LstmNmt, info: "DataInfo") -> None:
        super().__init__()
        self.encoder = Encoder(info.vocabulary, settings.width, settings.layers, settings.dropout)
        self.decoder = Decoder(info.vocabulary, settings.width, settings.layers, settings.dropout)
        self.head = nn.Linear(settings.width, info.vocabulary)
        self.note_vocabulary(info.vocabulary_digest)
        for name, parameter in self.named_parameters():
            nn.init.uniform_(parameter, -LARGEST, LARGEST)
            if "bias_ih" in name:  # initialize the forget gate open
                with torch.no_grad():
                    parameter.chunk(4)[1].add_(1.0)
        as_linears(self)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        attended = self.decoder.run(self.decoder.embedding(target), self.encode(source, source_mask))
        return self.head(self.decoder.dropout(attended))

    def encode(self, source: Tensor, source_mask: Tensor) -> "DecoderState":
        return self.decoder.start(*self.encoder(source, source_mask), source_mask)

    def step(self, tokens: Tensor, state: "DecoderState") -> tuple[Tensor, "DecoderState"]:
        state = self.decoder(self.decoder.embedding(tokens), state)
        return self.head(self.decoder.dropout(state.attended)), state

    def reorder(self, state: "DecoderState", indices: Tensor) -> "DecoderState":
        h, c = state.hidden
        rows = {name: getattr(state, name)[indices] for name in ("memory", "keys", "mask", "attended")}
        return DecoderState(**rows, hidden=(h[:, indices], c[:, indices]))


class Encoder(nn.Module):
    """Two LSTM stacks, one of which reads sentences backwards."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        self.onwards = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.backwards = nn.LSTM(width, width, layers, batch_first=True, dropout=between)

    @torch._disable_dynamo  # uses two streams; torch.compile skips LSTMs anyway
    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of both stacks at each token [B, S, 2 * width], and their final ones [B, 2 * width].

        The results do not depend on padding, which comes last in both directions.
        """
        x, lengths = self.dropout(self.embedding(source)), mask.sum(1, keepdim=True)
        places = torch.arange(source.shape[1], device=source.device)
        turned = torch.where(places < lengths, lengths - 1 - places, places)[..., None].expand_as(x)  # an involution
        runs = [partial(self.onwards, x), partial(self.backwards, x.gather(1, turned))]
        (onwards, _), (backwards, _) = side_by_side(runs, x)
        backwards = backwards.gather(1, turned)
        last = (lengths - 1).clamp(min=0)[..., None].expand(-1, 1, x.shape[2])
        ends = torch.cat([onwards.gather(1, last)[:, 0], backwards[:, 0]], -1)
        return torch.cat([onwards, backwards], -1), ends


@dataclass(frozen=True)
class DecoderState:
    """The decoder state between two steps.

    Args:
        memory: the encoder's outputs, [B, S, 2 * width].
        keys: the memory projected for attention scores, [B, S, width].
        mask: bool [B, S], True for source tokens.
        attended: attention output of the previous step, [B, width].
        hidden: h and c of all layers, [layers, B, width].
    """

    memory: Tensor
    keys: Tensor
    mask: Tensor
    attended: Tensor
    hidden: State


class Decoder(nn.Module):
    """An LSTM stack whose input is a token and the previous attention output."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = layers
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.Linear(2 * width, 2 * layers * width)
        self.lstm = nn.LSTM(2 * width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.keys = nn.Linear(2 * width, width, bias=False)
        self.attended = nn.Linear(3 * width, width, bias=False)

    def start(self, memory: Tensor, ends: Tensor, mask: Tensor) -> DecoderState:
        """The state before the first token."""
        h, c = self.first(ends).tanh().unflatten(1, (2, self.layers, -1)).permute(1, 2, 0, 3).contiguous()
        return DecoderState(memory, self.keys(memory), mask, torch.zeros_like(h[0]), (h, c))

    def forward(self, token: Tensor, state: DecoderState) -> DecoderState:
        """The state after one more token, embedded [B, width]."""
        x = self.dropout(torch.cat([token, state.attended], -1))
        h, c = (part.to(x.dtype) for part in state.hidden)  # the dtype may differ under autocast
        y, hidden = self.lstm(x[:, None], (h, c))
        return replace(state, attended=self._attend(y, state), hidden=hidden)

    def run(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """The attention outputs [B, T, width] after each of the tokens, embedded [B, T, width]."""
        attended = []
        if not (self.lstm.is_plain and torch.is_grad_enabled()):  # a dense network is timed with cuDNN's steps
            for token in tokens.unbind(1):
                state = self(token, state)
                attended.append(state.attended)
            return torch.stack(attended, 1)
        steps, states = LstmSteps(self.lstm, self.dropout(tokens)), list(zip(*state.hidden, strict=True))
        for step in range(tokens.shape[1]):
            y, states = steps(step, self.dropout(attended[-1] if attended else state.attended), states)
            attended.append(self._attend(y[:, None], state))
        return torch.stack(attended, 1)

    def _attend(self, y: Tensor, state: DecoderState) -> Tensor:
        """The attention output [B, width] of what the LSTM returned, [B, 1, width]."""
        scores = (y @ state.keys.mT).masked_fill(~state.mask[:, None], -torch.inf)  # [B, 1, S]
        features = torch.cat([scores.softmax(-1) @ state.memory, y], -1)[:, 0]
        return self.attended(features).tanh()
