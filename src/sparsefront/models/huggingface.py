"""Any text encoder of transformers, from a local folder."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import Model, linear_and_conv_layers, save_config
from sparsefront.models.bert_source import BertSource, folder_name
from sparsefront.models.linears import as_linears
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from sparsefront.data.base import DataInfo

CLASSES = {
    "sequence_classification": "AutoModelForSequenceClassification",
    "extractive_qa": "AutoModelForQuestionAnswering",
}
MEASURES = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class EncoderSource(BertSource):
    """The folder of an encoder of any architecture."""

    model_type: ClassVar[str | None] = None


class ModelWithTokenizer(Model):
    """A transformers network whose weights come with a tokenizer."""

    @property
    @abstractmethod
    def source(self) -> EncoderSource:
        """The source of weights and tokenizer."""

    def tokenizer(self, texts: Iterable[str] | None = None) -> "PreTrainedTokenizerBase":
        """The fast tokenizer of the weights, cached after the first call.

        Raises:
            InvalidSetting: it cannot be read, or has more tokens than the network has embeddings.
        """
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> "PreTrainedTokenizerBase":
        return self.source.tokenizer()


@settings_class()
class HuggingFace(ModelWithTokenizer):
    """Settings of model huggingface.

    Args:
        path: local folder in `save_pretrained` format: config.json, weights, tokenizer.
        pooling: mean: the classifier reads the mean of the last hidden states of all tokens, for networks that were trained so;
            transformers opens the encoder of an export. None: the head of the architecture.
        prune_head: also prune pooler and classifier.
    """

    kinds: ClassVar[tuple[str, ...]] = tuple(CLASSES)
    fingerprinted: ClassVar[frozenset[str]] = frozenset({"path"})

    path: str | None = None
    pooling: Literal["mean"] | None = None
    prune_head: bool = False

    @property
    def variant(self) -> str | None:
        return None if self.path is None else folder_name(self.path)

    def settings_used(self) -> dict[str, Any]:
        """Reduces the path to the folder's name; `pooling` only where it is set, as older records lack it."""
        used = asdict(self) | {"path": self.variant}
        return used if self.pooling else {key: value for key, value in used.items() if key != "pooling"}

    def network_facts(self, net: nn.Module) -> dict[str, Any]:
        """The sizes in its configuration that distinguish it from other encoders."""
        return {name: getattr(net.config, name) for name in MEASURES if hasattr(net.config, name)}

    @property
    def source(self) -> EncoderSource:
        """The source of the weights.

        Raises:
            InvalidSetting: no folder is set.
        """
        if self.path is None:
            raise InvalidSetting("path", None, "names the folder of an encoder, as save_pretrained writes it")
        return EncoderSource("", "", self.path)

    def check(self) -> None:
        self.source.check()

    def fingerprint(self) -> dict[str, Any]:
        return {"model": "huggingface", **self.source.fingerprint()}

    def build(self, info: "DataInfo") -> nn.Module:
        """transformers' class for this task; a head is new if the weights lack it or have other classes."""
        head = _head(self.skeleton(info))
        config = self._config(info)
        return _with_linears(
            self.source.network(self._network_class(info), config, head=head, classes=info.class_names)
        )

    def skeleton(self, info: "DataInfo") -> nn.Module:
        with torch.device("meta"), self.source.usable_config():
            return self._from_config(info, self._config(info)).train()

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        """Built from the export's config.json, or by `build` if there is none."""
        if not (exported / "config.json").is_file():
            return self.build(info)
        config = EncoderSource("", "", str(exported)).config()
        return self._from_config(info, config).float().train()

    def longest_sequence(self, info: "DataInfo") -> int | None:
        return self._longest(self._config(info))

    def prunable(self, net: nn.Module) -> list[str]:
        """Every Linear of the encoder; pooler and head only with prune_head."""
        layers, head = linear_and_conv_layers(net, inside=("",)), _head(net)
        body = [name for name in layers if not any(f"{name}.".startswith(f"{part}.") for part in head)]
        return layers if self.prune_head else body

    def save_pretrained_files(self, net: nn.Module, directory: Path) -> None:
        """config.json and the tokenizer, so that `from_pretrained(directory)` works with model.safetensors."""
        save_config(net, directory)
        self.tokenizer().save_pretrained(directory)

    def _network_class(self, info: "DataInfo") -> Any:
        import transformers

        if self.pooling is None:
            return getattr(transformers, CLASSES[info.kind])
        if info.kind != "sequence_classification":
            raise InvalidSetting(
                "pooling", self.pooling, f"is of whole texts, and the dataset asks for {info.kind}: null"
            )
        return _mean_pooled(type(self.source.config()))

    def _from_config(self, info: "DataInfo", config: "PretrainedConfig") -> nn.Module:
        network_class = self._network_class(info)
        return _with_linears(network_class._from_config(config) if self.pooling else network_class.from_config(config))

    def _config(self, info: "DataInfo") -> "PretrainedConfig":
        config = self.source.config(num_labels=info.num_classes, problem_type=None)
        longest = self._longest(config)
        if longest is not None and info.sequence_length is not None and info.sequence_length > longest:
            reason = f"takes at most {longest} tokens and the dataset gives up to {info.sequence_length}"
            raise self.source.invalid(reason)
        return config

    def _longest(self, config: "PretrainedConfig") -> int | None:
        """The smaller of the network's positions and the tokenizer's limit: some networks lose two positions to padding."""
        positions = getattr(config, "max_position_embeddings", None)
        return positions and min(positions, self.tokenizer().model_max_length)


@cache
def _mean_pooled(config_class: type) -> type[nn.Module]:
    """Class of a classifier of the mean hidden state of this architecture's encoder, which transformers loads as its own."""
    from transformers import MODEL_MAPPING, PreTrainedModel
    from transformers.modeling_outputs import SequenceClassifierOutput

    encoder_class = MODEL_MAPPING[config_class]
    unpooled = {"add_pooling_layer": False} if "add_pooling_layer" in signature(encoder_class).parameters else {}
    takes_types = "token_type_ids" in signature(encoder_class.forward).parameters
    base: Any = next(kind for kind in encoder_class.__mro__[1:] if issubclass(kind, PreTrainedModel))

    class MeanPooled(base):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            setattr(self, self.base_model_prefix, encoder_class(config, **unpooled))
            rates = (getattr(config, name, None) for name in ("classifier_dropout", "hidden_dropout_prob", "dropout"))
            self.dropout = nn.Dropout(next((rate for rate in rates if rate is not None), 0.0))
            self.classifier = nn.Linear(config.hidden_size, config.num_labels)
            self.post_init()

        def forward(
            self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
        ) -> Any:
            """`attention_mask`: [B, length], or bool [B, 1, length, length] as `tasks.base.with_square_mask` makes it."""
            types = {"token_type_ids": token_type_ids} if takes_types else {}
            states = self.base_model(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
            if attention_mask is None:
                pooled = states.mean(1)
            else:
                counted = attention_mask[:, 0, 0] if attention_mask.ndim == 4 else attention_mask
                counted = counted[:, :, None].to(states.dtype)
                pooled = (states * counted).sum(1) / counted.sum(1)
            return SequenceClassifierOutput(logits=self.classifier(self.dropout(pooled)))

    return MeanPooled


def _with_linears(net: nn.Module) -> nn.Module:
    as_linears(net)
    return net


def _head(net: nn.Module) -> tuple[str, ...]:
    """The modules besides the encoder, and its pooler, which some checkpoints lack."""
    trunk = net.base_model_prefix
    beside = [name for name, _ in net.named_children() if name != trunk]
    return (*(f"{trunk}.pooler",), *beside)
