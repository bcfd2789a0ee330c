"""Local checkpoints: find them, read them as plain tensors, and load them into a network."""

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
PART = "::"  # between a file and its entry with the state dict: last.pth::state_dict_ema
WRAPPERS = ("state_dict", "model_state_dict", "model")
# Key prefixes added by DistributedDataParallel, torch.compile, AveragedModel and Lightning, in any order.
PREFIXES = ("module.", "_orig_mod.", "net.", "model.")
COUNTER = "n_averaged"  # AveragedModel's own buffer, not a weight


def weights_file(path: str) -> Path:
    """The checkpoint at `path`: a file, with or without `::entry`, or a folder with model.safetensors.

    Raises:
        InvalidSetting: it does not exist or has an unsupported format.
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
    """Identify the weights of a local checkpoint, JSON-able: digest of the file, and the entry."""
    entry = path.partition(PART)[2]
    return {"sha256": file_digest(weights_file(path))} | ({"entry": entry} if entry else {})


def read_weights(path: str) -> dict[str, Tensor]:
    """Read a state dict, on the CPU. Pickled objects other than tensors and plain containers are rejected.

    If a checkpoint has several entries, the first one in `WRAPPERS` is used; `::entry` in `path` selects another, such as
    last.pth::state_dict_ema. Prefixes that training tools add to every key are removed, in any nesting.

    Raises:
        InvalidSetting: the file cannot be read, lacks the entry, has no tensors, or contains NaN or infinity.
    """
    file, entry = weights_file(path), path.partition(PART)[2]
    try:
        if file.suffix == ".safetensors":
            content = load_file(file)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected pickle protocol")  # an error follows
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler can fail in any way on other files
        raise InvalidSetting("path", path, f"cannot be read as plain tensors: {why_unreadable(error)}") from error
    content = _state_dict(content, entry, path)
    if COUNTER in content and any(key.startswith("module.") for key in content):
        content = {key: value for key, value in content.items() if key != COUNTER}
    while prefix := next((prefix for prefix in PREFIXES if all(key.startswith(prefix) for key in content)), None):
        content = {key.removeprefix(prefix): value for key, value in content.items()}
    complaint = non_finite(content, file.name)
    if complaint:
        raise InvalidSetting("path", path, complaint)
    return dict(content)


def _state_dict(content: object, entry: str, path: str) -> dict[str, Tensor]:
    """The given entry of a checkpoint, or the first of `WRAPPERS`, also if nested."""
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


IMAGENET_CLASSES, IMAGENET_CLASS = (1000, r"n\d{8}")  # class folders such as n01440764, whose order numbers the classes


def warn_of_unnamed_classes(classes: Sequence[str], path: str) -> None:
    """Warn if a head with ImageNet's classes is kept for a data set with as many other classes.

    Args:
        classes: the data's names; may be empty.
        path: source of the weights, for the message.
    """
    if len(classes) == IMAGENET_CLASSES and not all(re.fullmatch(IMAGENET_CLASS, name) for name in classes):
        note = "its classes are ImageNet's, numbered in the order of n01440764 ... n15075141, and the data's are not named so"
        log.warning("%s: %s (%s ...): joined by number", path, note, ", ".join(classes[:3]))


def load_weights(net: nn.Module, weights: dict[str, Tensor], *, head: str, path: str) -> None:
    """Copy a state dict into `net`, keeping its dtype.

    Args:
        head: name of the task head. If it is missing from the checkpoint or has other shapes (another number of classes),
            its initialization is kept; everything else must match exactly.
        path: source of the weights, for the message.
    Raises:
        InvalidSetting: missing or unexpected keys, or other shapes; names the first few.
    """
    own = {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()}
    shapes = {key: tuple(tensor.shape) for key, tensor in weights.items()}
    head_keys = [key for key in own if key.startswith(f"{head}.")]
    if any(shapes.get(key) != own[key] for key in head_keys):
        log.info("%s: not in the checkpoint in this shape, newly initialized (%s)", head, path)
        weights = {key: tensor for key, tensor in weights.items() if not key.startswith(f"{head}.")}
        note_new_layers(net, [head])
    else:
        head_keys = []
    reshaped = [key for key in weights if key in own and shapes[key] != own[key]]
    fitting = {key: tensor for key, tensor in weights.items() if key not in reshaped}
    missing, unexpected = load_state(net, fitting, strict=False)  # torch's strict mode would list every key
    complaint = misfit(
        missing=[key for key in missing if key not in head_keys and key not in reshaped],
        unexpected=unexpected,
        reshaped=[f"{key} {list(shapes[key])} for {list(own[key])}" for key in reshaped],
    )
    if complaint:
        raise InvalidSetting("path", path, complaint)


def note_new_layers(net: nn.Module, layers: list[str]) -> None:
    """Record on the network, and its copies, which layers the checkpoint has no weights for."""
    net.__dict__["_new_layers"] = tuple(layers)


def new_layers(net: nn.Module) -> tuple[str, ...]:
    """The layers recorded by `note_new_layers`; empty if there are none."""
    return net.__dict__.get("_new_layers", ())


def misfit(*, missing: list[str], unexpected: list[str], reshaped: list[str]) -> str:
    """Format the first few differences of each kind between a checkpoint and a model; "" if there are none.

    Args:
        reshaped: each "<key> <shape in the checkpoint> for <shape in the model>".
    """
    sorts = {"missing keys": missing, "unexpected keys": unexpected, "other shapes": reshaped}
    parts = [f"{sort}: {_first_few(keys)}" for sort, keys in sorts.items() if keys]
    return f"does not fit the model; {'; '.join(parts)}" if parts else ""


def misfit_of(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """Format the first few differences between a state dict and that of the network; "" if there are none."""
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
    """Format the first tensor of a file that contains NaN or infinity; "" if all are finite."""
    bad_tensor = first_non_finite(weights)
    return "" if bad_tensor is None else f"{file} cannot be used: {bad_tensor.name} holds {bad_tensor.counts} values"


def why_unreadable(error: Exception) -> str:
    """Why a checkpoint could not be read, in one line.

    torch's message about untrusted objects has several lines, advises to trust them, and names the class only at its end.
    """
    fault = re.search(r"(Unsupported (?:global|class|type)[^:]*: (?:GLOBAL )?|unsupported GLOBAL )([\w.]+)", str(error))
    if fault is not None:
        # torch blocks modules such as posix whatever is asked of them; what has no module is a function of Python itself
        runs = fault[1].startswith("u") or "." not in fault[2]
        holds = f"it wants to run {fault[2]}" if runs else f"it holds objects of {fault[2]}"
        remedy = "save its state dict alone: torch.save(net.state_dict(), FILE), or .safetensors"
        return f"{holds}, and such a pickle can run any code; {remedy}"
    odd_bytes = isinstance(error, pickle.UnpicklingError | KeyError | EOFError | UnicodeDecodeError | IndexError)
    if odd_bytes or "PytorchStreamReader" in str(error):
        return "it is cut short or damaged, or was not written by torch.save"
    return first_line(error)


def _first_few(keys: list[str]) -> str:
    more = len(keys) - NAMED_AT_MOST
    return ", ".join(sorted(keys)[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
