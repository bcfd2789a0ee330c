"""Networks that read one text and write another one: the attention mask of a batch is that of the encoder's text alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sparsefront.forward_calls import after_forward


def in_encoder(net: nn.Module) -> Callable[[nn.Module], bool]:
    """Whether a module of the network sees the text of the attention mask: in an encoder-decoder network of transformers those
    of its encoder, in any other network all.
    """
    encoder = _encoder(net)
    inside = set(net.modules() if encoder is None else encoder.modules())
    return inside.__contains__


@contextmanager
def given_encoder_text(net: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[Callable[[str, Tensor], bool]]:
    """While open, tells of a layer and what it is given in a forward whether that is of the text of the attention mask: in a
    decoder only what the encoder returned, which cross-attention reads. Lengths don't tell: both texts may have the same.
    """
    encoder, inside = _encoder(net), in_encoder(net)
    returned: list[Tensor] = []

    def keep(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        returned[:] = [output if isinstance(output, Tensor) else output[0]]

    with after_forward({} if encoder is None else {"encoder": encoder}, keep):
        yield lambda name, x: inside(modules[name]) or any(x is one for one in returned)


def _encoder(net: nn.Module) -> nn.Module | None:
    """The encoder of an encoder-decoder network of transformers, which may be a part of the network."""
    for module in net.modules():
        if getattr(getattr(module, "config", None), "is_encoder_decoder", False) and hasattr(module, "get_encoder"):
            encoder: nn.Module = module.get_encoder()
            return encoder
    return None
