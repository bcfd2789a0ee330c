"""Any classifier of timm, by name."""

import importlib.util
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from sparsefront.errors import InvalidSetting, first_line
from sparsefront.models.base import Model, linear_and_conv_layers
from sparsefront.models.checkpoint import (
    load_weights,
    read_weights,
    warn_of_unnamed_classes,
    weights_file,
    weights_fingerprint,
)
from sparsefront.networks import in_eval_mode
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo

NAMED_AT_MOST = 5


@settings_class()
class TimmClassifier(Model):
    """Settings of model timm.

    Args:
        name: in timm, such as vit_small_patch16_224, convnext_tiny or resnet50.a1_in1k; the part after the dot selects the
            weights.
        pretrained: download timm's weights of that name from the Hugging Face hub; false = path or random.
        path: local checkpoint.
        prune_head: also prune the classifier.
    """

    kinds: ClassVar[tuple[str, ...]] = ("image_classification",)
    fingerprinted: ClassVar[frozenset[str]] = frozenset({"name", "pretrained", "path"})

    name: str = "vit_small_patch16_224"
    pretrained: bool = False
    path: str | None = None
    prune_head: bool = False

    @property
    def variant(self) -> str:
        return self.name

    @property
    def checkpoint(self) -> str | None:
        return self.path or (f"timm/{self.name}" if self.pretrained else None)

    def check(self) -> None:
        if importlib.util.find_spec("timm") is None:
            raise InvalidSetting("name", self.name, "needs timm (`pip install timm`)")
        import timm

        architecture, _, tag = self.name.partition(".")
        if not timm.is_model(architecture):
            close = ", ".join(timm.list_models(f"*{architecture.split('_')[0]}*")[:NAMED_AT_MOST])
            allowed = f"is no model of timm; timm.list_models() lists them{f', for example {close}' if close else ''}"
            raise InvalidSetting("name", self.name, allowed)
        if self.pretrained and self.path is not None:
            raise InvalidSetting("path", self.path, "pretrained=true excludes it; set one of the two")
        if (self.pretrained or tag) and not timm.models.is_model_pretrained(self.name):
            tags = ", ".join(timm.list_pretrained(architecture)) or "none"
            raise InvalidSetting(
                "name", self.name, f"timm has no weights of this name; of {architecture} there are {tags}"
            )
        if self.path is not None:
            weights_file(self.path)

    def fingerprint(self) -> dict[str, Any]:
        weights: Any = "random"
        if self.path is not None:
            weights = weights_fingerprint(self.path)
        elif self.pretrained:
            import timm

            weights = {"timm": self.name, "version": timm.__version__}
        return {"model": "timm", "name": self.name, "weights": weights}

    def build(self, info: "DataInfo") -> nn.Module:
        net = self._net(info, pretrained=self.pretrained)
        if self.pretrained:
            warn_of_unnamed_classes(info.class_names, f"timm/{self.name}")
        if self.path is not None:
            load_weights(net, read_weights(self.path), head=_head(net), path=self.path)
        return net

    def skeleton(self, info: "DataInfo") -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # not built on meta: some timm networks compute with tensors meanwhile
            net = self._net(info).to("meta")
        try:
            _find_called(net)
        except (RuntimeError, ValueError, AssertionError) as error:
            why = f"cannot take images of {info.image_size} pixels ({first_line(error)})"
            raise InvalidSetting("name", self.name, why) from error
        return net

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        return self._net(info)

    def prunable(self, net: nn.Module) -> list[str]:
        """Every Linear and Conv2d that a forward calls, except the first convolution and, without prune_head, the head.

        Some attentions (EVA) read the weight of a layer without calling it, so no kernel could run there.
        """
        dense = {net.pretrained_cfg["first_conv"]} | (set() if self.prune_head else {_head(net)})
        called = _find_called(net)
        return [name for name in linear_and_conv_layers(net, inside=("",)) if name in called and name not in dense]

    def _net(self, info: "DataInfo", *, pretrained: bool = False) -> nn.Module:
        import timm

        arguments = {"num_classes": info.num_classes, "in_chans": info.channels}
        try:
            try:
                net = timm.create_model(self.name, pretrained=pretrained, img_size=info.image_size, **arguments)
            except TypeError:  # networks for any image size have no such argument
                net = timm.create_model(self.name, pretrained=pretrained, **arguments)
        except Exception as error:  # timm and the hub client raise many types
            raise InvalidSetting("name", self.name, f"cannot be built for this data: {first_line(error)}") from error
        net.__dict__["_image"] = (info.channels, info.image_size, info.image_size)
        return net


def _head(net: nn.Module) -> str:
    """The classifier, according to timm."""
    name = net.pretrained_cfg["classifier"]
    return name if isinstance(name, str) else name[0]


def _find_called(net: nn.Module) -> set[str]:
    """Names of the modules that a forward calls, found on the meta device."""
    copy, called = deepcopy(net).to("meta"), set()
    for name, module in copy.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    with in_eval_mode(copy), torch.no_grad():
        copy(x=torch.empty(2, *net.__dict__["_image"], device="meta"))
    return called
