"""A network's plain weights on disk."""

from pathlib import Path

from safetensors.torch import save_file
from torch import nn

WEIGHTS = "weights.safetensors"


def save_weights(net: nn.Module, file: Path) -> None:
    """The plain state dict, fp32, on the CPU; with the metadata of an export's, which may be a second name of the file."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in net.state_dict().items()}
    save_file(state, file, metadata={"format": "pt"})
