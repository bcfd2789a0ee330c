"""Any causal language model of transformers, from a local folder or the hub."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import block_names, linear_and_conv_layers, save_config
from sparsefront.models.bert_source import SHARDED_WEIGHTS, WEIGHTS, folder_name, hub_folder
from sparsefront.models.huggingface import MEASURES, EncoderSource, ModelWithTokenizer
from sparsefront.models.linears import as_linears
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from sparsefront.data.base import DataInfo

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Class name endings of such models in transformers."""


HEAD = ("lm_head",)


@dataclass(frozen=True)
class LanguageModelSource(EncoderSource):
    """The folder or hub repository of a causal language model; its weights may be sharded."""

    def _folder(self, *needed: tuple[str, ...], wanted: tuple[str, ...] = ()) -> Path:
        if self.path is not None or WEIGHTS not in needed:
            return super()._folder(*needed, wanted=wanted)
        others = tuple(files for files in needed if files != WEIGHTS)
        folder = hub_folder(self.name, self.revision, needed=(*others, (*WEIGHTS, *SHARDED_WEIGHTS)), wanted=wanted)
        index = next((folder / file for file in SHARDED_WEIGHTS if (folder / file).is_file()), None)
        if index is None or any((folder / file).is_file() for file in WEIGHTS):
            return folder
        shards = self._json(index).get("weight_map")
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []  # others are refused below
        return hub_folder(self.name, self.revision, needed=(*others, *((name,) for name in names)))


@settings_class()
class HuggingFaceLM(ModelWithTokenizer):
    """Settings of model huggingface_lm.

    Args:
        path: local folder in `save_pretrained` format: config.json, weights, tokenizer.
        name: hub id, used if path is None.
        revision: its branch, tag or commit.
        prune_head: also prune the LM head, if it does not share its weight with the embedding.
    """

    kinds: ClassVar[tuple[str, ...]] = ("causal_lm",)
    fingerprinted: ClassVar[frozenset[str]] = frozenset({"path", "name", "revision"})

    path: str | None = None
    name: str | None = None
    revision: str = "main"
    prune_head: bool = False

    @property
    def variant(self) -> str | None:
        return folder_name(self.path) if self.path is not None else self.name and self.name.rpartition("/")[2]

    @property
    def checkpoint(self) -> str | None:
        return self.path or self.name

    def settings_used(self) -> dict[str, Any]:
        """Reduces the path to the folder's name; `name` and `revision` only if they were used."""
        own = {} if self.path is None else {"name": None, "revision": None}
        return asdict(self) | own | {"path": self.path and folder_name(self.path)}

    def network_facts(self, net: nn.Module) -> dict[str, Any]:
        """The sizes in its configuration that distinguish it from other networks."""
        return {name: getattr(net.config, name) for name in MEASURES if hasattr(net.config, name)}

    @property
    def source(self) -> LanguageModelSource:
        """The source of the weights.

        Raises:
            InvalidSetting: neither path nor name is set.
        """
        if self.path is None and self.name is None:
            raise InvalidSetting(
                "path", None, "names the folder of a language model; or set model.name to an id of the hub"
            )
        return LanguageModelSource(self.name or "", self.revision, self.path)

    def check(self) -> None:
        self.source.check()

    def at_commit(self) -> Self:
        return self if self.path is not None else replace(self, revision=self.source.commit())

    def fingerprint(self) -> dict[str, Any]:
        return {"model": "huggingface_lm", **self.source.fingerprint()}

    def build(self, info: "DataInfo") -> nn.Module:
        """transformers' class with an LM head, without a key-value cache by default."""
        config = self._config(info)
        return _with_linears(self.source.network(self.network_class(config), config, head=HEAD))

    def skeleton(self, info: "DataInfo") -> nn.Module:
        config = self._config(info)
        with torch.device("meta"), self.source.usable_config():
            return _with_linears(self.network_class(config).from_config(config).train())

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        """Built from the export's config.json, or by `build` if there is none."""
        if not (exported / "config.json").is_file():
            return self.build(info)
        config = LanguageModelSource("", "", str(exported)).config(use_cache=False)
        return _with_linears(self.network_class(config).from_config(config).float().train())

    def longest_sequence(self, info: "DataInfo") -> int | None:
        return _longest(self._config(info))

    def prunable(self, net: nn.Module) -> list[str]:
        """Every Linear of the blocks; the head only with prune_head.

        Raises:
            InvalidSetting: prune_head, and the head shares its weight with the embedding.
        """
        layers = linear_and_conv_layers(net, inside=("",))
        blocks = tuple(f"{name}." for name in block_names(net, layers))
        if self.prune_head and getattr(net.config, "tie_word_embeddings", False):
            raise InvalidSetting("prune_head", True, "would prune the embedding, which has the same weight")
        return [name for name in layers if name.startswith(blocks) or (self.prune_head and name in HEAD)]

    def save_pretrained_files(self, net: nn.Module, directory: Path) -> None:
        """config.json and the tokenizer, so that `from_pretrained(directory)` works with model.safetensors."""
        config: Any = net.config
        config.use_cache = True  # the default for generation
        save_config(net, directory)
        config.use_cache = False
        self._tokenizer.save_pretrained(directory)

    def network_class(self, config: "PretrainedConfig") -> Any:
        """The class with `from_config` and `from_pretrained`."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    def _config(self, info: "DataInfo") -> "PretrainedConfig":
        config = self.source.config(use_cache=False)
        classes = getattr(config, "architectures", None) or GENERATES
        if not any(name.endswith(GENERATES) for name in classes) or getattr(config, "is_encoder_decoder", False):
            raise self.source.invalid(f"holds a {' or '.join(classes)}, which predicts no next token")
        longest = _longest(config)
        if longest is not None and info.sequence_length is not None and info.sequence_length > longest:
            reason = f"takes at most {longest} tokens and the dataset gives up to {info.sequence_length}"
            raise self.source.invalid(reason)
        return config


def _with_linears(net: nn.Module) -> nn.Module:
    as_linears(net)  # GPT-2's Conv1D
    return net


def _longest(config: "PretrainedConfig") -> int | None:
    longest: int | None = getattr(config, "max_position_embeddings", None)
    return longest
