"""Local checkpoints: found, read as plain tensors, fitted to a network."""

import logging
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.networks import first_non_finite, load_state

log = logging.getLogger(__name__)
PICKLED = (".pth", ".pt", ".bin", ".ckpt")
NAMED_AT_MOST = 3
PART = "::"  # between a file and the entry of it that holds the state dict: last.pth::state_dict_ema
WRAPPERS = ("state_dict", "model_state_dict", "model")
# What DistributedDataParallel, torch.compile, AveragedModel and Lightning put before the names of a network, in any order.
PREFIXES = ("module.", "_orig_mod.", "net.", "model.")
COUNTER = "n_averaged"  # AveragedModel's own buffer, no weight of the network


def weights_file(path: str) -> Path:
    """The checkpoint that `path` names: a file, with or without `::entry`, or a folder that holds model.safetensors.

    Raises:
        InvalidSetting: it does not exist, or is no format that we read.
    """
    file = Path(path.partition(PART)[0]).expanduser()
    if file.is_dir() and (file / "model.safetensors").is_file():
        file = file / "model.safetensors"
    if not file.exists():
        raise InvalidSetting("path", path, "does not exist")
    if not file.is_file() or file.suffix not in (".safetensors", *PICKLED):
        allowed = ", ".join((".safetensors", *PICKLED))
        raise InvalidSetting("path", path, f"must be a checkpoint file ({allowed}) or a folder with model.safetensors")
    return file


def weights_fingerprint(path: str) -> dict[str, str]:
    """What identifies the weights of a local checkpoint, JSON-able: the bytes of the file and the entry that is read."""
    entry = path.partition(PART)[2]
    return {"sha256": file_digest(weights_file(path))} | ({"entry": entry} if entry else {})


def read_weights(path: str) -> dict[str, Tensor]:
    """State dict of a checkpoint, on the CPU. Pickled objects other than tensors and plain containers are rejected.

    Of a checkpoint with several entries `WRAPPERS` are looked for in this order; `path` with `::entry` names another one, such
    as last.pth::state_dict_ema. The prefixes that training tools put before every key are taken off, however they nest.

    Raises:
        InvalidSetting: the file cannot be read so, has no such entry or no tensors, or one with NaN or infinity.
    """
    file, entry = weights_file(path), path.partition(PART)[2]
    try:
        if file.suffix == ".safetensors":
            content = load_file(file)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected pickle protocol")  # what is wrong with it follows
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # on bytes that are no checkpoint, the unpickler fails in whatever way they lead it to
        raise InvalidSetting("path", path, f"cannot be read as plain tensors: {why_unreadable(error)}") from error
    content = _state_dict(content, entry, path)
    if COUNTER in content and any(key.startswith("module.") for key in content):
        content = {key: value for key, value in content.items() if key != COUNTER}
    while prefix := next((prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in content)), None):
        content = {key.removeprefix(prefix): value for key, value in content.items()}
    if complaint := non_finite(content, file.name):
        raise InvalidSetting("path", path, complaint)
    return dict(content)


def _state_dict(content: object, entry: str, path: str) -> dict[str, Tensor]:
    """The entry of a checkpoint, or the first of `WRAPPERS` that it has, as far down as they nest."""
    if entry:
        if not isinstance(content, dict) or not isinstance(content.get(entry), dict):
            there = (
                ", ".join(key for key, value in content.items() if isinstance(value, dict))
                if isinstance(content, dict)
                else ""
            )
            raise InvalidSetting("path", path, f"has no state dict {entry!r}; there are {there or 'none'}")
        content = content[entry]
    while isinstance(content, dict) and (
        wrapper := next((name for name in WRAPPERS if isinstance(content.get(name), dict)), None)
    ):
        content = content[wrapper]
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise InvalidSetting("path", path, "has no state dict: a mapping from names to tensors is expected")
    return content


IMAGENET_CLASSES, IMAGENET_CLASS = (
    1000,
    r"n\d{8}",
)  # its folders, such as n01440764, in whose order its classes are numbered


def warn_of_unnamed_classes(classes: Sequence[str], path: str) -> None:
    """Warn where a head with ImageNet's classes is kept for a data set that names as many others.

    Args:
        classes: the data's names; empty where it has none.
        path: where the weights come from, for the message.
    """
    if len(classes) == IMAGENET_CLASSES and not all(re.fullmatch(IMAGENET_CLASS, name) for name in classes):
        told = "its classes are ImageNet's, numbered in the order of n01440764 ... n15075141, and the data's are not named so"
        log.warning("%s: %s (%s ...): joined by number", path, told, ", ".join(classes[:3]))


def load_weights(net: nn.Module, weights: dict[str, Tensor], *, head: str, path: str) -> None:
    """Copy a state dict into `net`, whose own dtype stays.

    Args:
        head: name of the task head. Where it is absent from the checkpoint or has other shapes (another number of
            classes), the net's own initialization is kept; everything else must fit exactly.
        path: where the weights come from, for the message.
    Raises:
        InvalidSetting: missing or unexpected keys or other shapes; the first few are named.
    """
    own = {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()}
    given = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    head_keys = [key for key in own if key.startswith(f"{head}.")]
    if any(given.get(key) != own[key] for key in head_keys):
        log.info("%s: not in the checkpoint in this shape, newly initialized (%s)", head, path)
        weights = {key: tensor for key, tensor in weights.items() if not key.startswith(f"{head}.")}
        note_new_layers(net, [head])
    else:
        head_keys = []
    reshaped = [key for key in weights if key in own and given[key] != own[key]]
    fitting = {key: tensor for key, tensor in weights.items() if key not in reshaped}
    missing, unexpected = load_state(net, fitting, strict=False)  # not strict: torch would list every key
    complaint = misfit(
        missing=[key for key in missing if key not in head_keys and key not in reshaped],
        unexpected=unexpected,
        reshaped=[f"{key} {list(given[key])} for {list(own[key])}" for key in reshaped],
    )
    if complaint:
        raise InvalidSetting("path", path, complaint)


def note_new_layers(net: nn.Module, layers: list[str]) -> None:
    """Remember on the network, and on its copies, which of its layers the checkpoint has no weights for."""
    net.__dict__["_new_layers"] = tuple(layers)


def new_layers(net: nn.Module) -> tuple[str, ...]:
    """The layers that `note_new_layers` named; none of a network that a checkpoint fills, or that has none."""
    return net.__dict__.get("_new_layers", ())


def misfit(*, missing: list[str], unexpected: list[str], reshaped: list[str]) -> str:
    """In words, the first few differences of each sort between a checkpoint and a model; "" where there are none.

    Args:
        reshaped: each "<key> <shape in the checkpoint> for <shape in the model>".
    """
    sorts = {"missing keys": missing, "unexpected keys": unexpected, "other shapes": reshaped}
    parts = [f"{sort}: {_first_few(keys)}" for sort, keys in sorts.items() if keys]
    return f"does not fit the model; {'; '.join(parts)}" if parts else ""


def misfit_of(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """In words, the first few differences between a state dict and that of the network; "" where there are none."""
    return misfit(
        missing=[key for key in own if key not in weights],
        unexpected=[key for key in weights if key not in own],
        reshaped=[
            f"{key} {list(value.shape)} for {list(own[key].shape)}"
            for key, value in weights.items()
            if key in own and value.shape != own[key].shape
        ],
    )


def non_finite(weights: Mapping[str, Tensor], file: str) -> str:
    """In words, the first tensor of a file that holds NaN or infinity; "" where all are finite."""
    found = first_non_finite(weights)
    return "" if found is None else f"{file} cannot be used: {found.name} holds {found.counts} values"


def why_unreadable(error: Exception) -> str:
    """Why a checkpoint could not be read, in one line.

    torch's own message on objects that it does not trust is several lines long, begins with what makes it unsafe, and
    names the class at its end.
    """
    if untrusted := re.search(r"Unsupported (?:global|class|type)[^:]*: (?:GLOBAL )?([\w.]+)", str(error)):
        remedy = "save its state dict alone: torch.save(net.state_dict(), FILE), or .safetensors"
        return f"it holds objects of {untrusted[1]}, and such a pickle can run any code; {remedy}"
    odd_bytes = isinstance(error, pickle.UnpicklingError | KeyError | EOFError | UnicodeDecodeError | IndexError)
    if odd_bytes or "PytorchStreamReader" in str(error):
        return "it is cut short or damaged, or was not written by torch.save"
    return first_line(error)


def _first_few(keys: list[str]) -> str:
    more = len(keys) - NAMED_AT_MOST
    return ", ".join(sorted(keys)[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
