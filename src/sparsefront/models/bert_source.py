"""Load a pretrained BERT, strictly, from a local folder or the cached snapshot of a hub repository."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from sparsefront import progress
from sparsefront.artifacts.bounded_files import Unreadable, read_json_bounded
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.models.checkpoint import misfit, non_finite, note_new_layers, why_unreadable

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


REMEDY = "set model.path to a local folder"
PROBE_SECONDS = 10


def hub_folder(name: str, revision: str, *, needed: tuple[tuple[str, ...], ...], wanted: tuple[str, ...] = ()) -> Path:
    """Folder of the cached snapshot with the files; a cached copy is used without contacting the hub.

    Args:
        name: hub id, "owner/name" or "name".
        revision: branch, tag or commit. The folder is named after the commit.
        needed: one tuple per required file, with alternative names in order of preference.
        wanted: optional files, downloaded with them if the repository has them.
    Raises:
        InvalidSetting: no such repository or revision, a needed file is missing, or the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download, utils
    from huggingface_hub.errors import HFValidationError

    try:
        cached = [
            next(filter(None, (_find_cached(name, revision, file) for file in alternatives)), None)
            for alternatives in needed
        ]
    except HFValidationError as error:
        raise InvalidSetting("name", name, f"is no id of the hub: {error}") from error
    if None not in cached and len({file.parent for file in cached}) == 1:
        return cached[0].parent

    available = _files_on_hub(name, revision)
    chosen = [next((file for file in alternatives if file in available), None) for alternatives in needed]
    for file, alternatives in zip(chosen, needed):
        if file is None:
            raise InvalidSetting("name", name, f"its repository has no {' or '.join(alternatives)}; {REMEDY}")
    extras = [file for file in wanted if file in available and file not in chosen]
    try:  # needed files last: if they are cached, so are the optional ones
        with progress.sync_progress_bars(utils):
            files = [Path(hf_hub_download(name, file, revision=revision)) for file in (*extras, *chosen)]
    except Exception as error:
        raise _unreachable(name, error) from error
    return files[-1].parent


def _find_cached(name: str, revision: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    entry = try_to_load_from_cache(name, file, revision=revision)  # a path, None, or a marker for "does not exist"
    return Path(entry) if isinstance(entry, str) else None


def _files_on_hub(name: str, revision: str) -> set[str]:
    """List the files with one request; a download would retry for half a minute without a network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return {file.rfilename for file in HfApi().model_info(name, revision=revision, timeout=PROBE_SECONDS).siblings}
    except RepositoryNotFoundError as error:
        raise InvalidSetting("name", name, f"is not on the Hugging Face hub (or needs a login); {REMEDY}") from error
    except RevisionNotFoundError as error:
        raise InvalidSetting("revision", revision, f"is no branch, tag or commit of {name}") from error
    except Exception as error:  # includes transport errors, whose package depends on the hub client's version
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> InvalidSetting:
    reason = f"is not cached and the Hugging Face hub cannot be read ({first_line(error)}); {REMEDY}"
    return InvalidSetting("name", name, reason)


def folder_name(path: str) -> str:
    """The folder's name; for a snapshot in the hub's cache, named after a commit, that of its repository."""
    folder = Path(os.path.abspath(path))
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


log = logging.getLogger(__name__)

CONFIG = ("config.json",)
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SHARDED_WEIGHTS = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TOKENIZER = ("tokenizer.json", "vocab.txt")
TOKENIZER_EXTRAS = ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json")
READ = (*CONFIG, "model*.safetensors*", "pytorch_model*.bin*", "added_tokens.json")
# Settings of a config.json that would name other files or code than the folder's weights and transformers' network.
NEVER_READ = re.compile(r"_?(attn|experts)_implementation(_internal)?|transformers_weights|auto_map")
MOST_LAYERS = 4096


@dataclass(frozen=True)
class BertSource:
    """The source of weights, configuration and tokenizer.

    Args:
        name, revision: hub id and branch, tag or commit, used if path is None.
        path: local folder in `save_pretrained` format.
    Attributes:
        model_type: of its config.json; None: any that transformers knows.
        tokenizer_files: alternative names of the tokenizer's file, one of which is required; `tokenizer_extras`: optional ones.
    """

    model_type: ClassVar[str | None] = "bert"
    tokenizer_files: ClassVar[tuple[str, ...]] = TOKENIZER
    tokenizer_extras: ClassVar[tuple[str, ...]] = TOKENIZER_EXTRAS

    name: str
    revision: str
    path: str | None

    def invalid(self, reason: str) -> InvalidSetting:
        """The error for the given path or name, under its key."""
        key, value = ("name", self.name) if self.path is None else ("path", self.path)
        return InvalidSetting(key, value, reason)

    def check(self) -> None:
        """Raise InvalidSetting if a folder is missing, incomplete, or of another model. Does not contact the hub."""
        if self.path is None:
            return
        folder = self._local_folder()
        for alternatives in ((*WEIGHTS, *SHARDED_WEIGHTS), self.tokenizer_files):
            if not any((folder / file).is_file() for file in alternatives):
                raise self.invalid(f"has no {' or '.join(alternatives)}")
        self._config_json(folder)
        self._shards(folder)

    def fingerprint(self) -> dict[str, Any]:
        """Hub id and revision; for a local folder, digests of the files that are read."""
        if self.path is None:
            return {"hub": self.name, "revision": self.revision}
        folder = self._local_folder()
        read = (*READ, *self.tokenizer_files, *self.tokenizer_extras)
        files = {file for pattern in read for file in folder.glob(pattern)} | self._shards(folder)
        return {"sha256": {file.name: file_digest(file) for file in sorted(files)}}

    def commit(self) -> str:
        """The commit of the revision: that of cached files, if any, without contacting the hub.

        Raises:
            InvalidSetting: nothing is cached, and the hub has no such repository or revision, or cannot be reached.
        """
        return self._folder(CONFIG).name

    def config(self, **settings: Any) -> "PretrainedConfig":
        """The stored configuration with some settings replaced.

        Raises:
            InvalidSetting: transformers does not know its type, or rejects its values.
        """
        from transformers import CONFIG_MAPPING

        content = self._config_json(self._folder(CONFIG))
        with self.usable_config():
            return CONFIG_MAPPING[content["model_type"]].from_dict(content, **settings)

    @contextmanager
    def usable_config(self) -> Iterator[None]:
        """Context in which any error is that of a config.json that describes no network, as an InvalidSetting."""
        try:
            yield
        except InvalidSetting:
            raise
        except Exception as error:  # transformers' classes take any values, and fail anywhere
            why = f"{type(error).__name__}: {first_line(error)}"
            raise self.invalid(f"its config.json cannot be used: {why}") from error

    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The stored tokenizer.

        Raises:
            InvalidSetting: it is missing, cannot be read, or has more tokens than the network has embeddings.
        """
        from transformers import AutoTokenizer

        folder = self._folder(CONFIG, self.tokenizer_files, wanted=self.tokenizer_extras)
        # otherwise transformers would silently create an empty vocabulary
        if not any((folder / file).is_file() for file in self.tokenizer_files):
            raise self.invalid(f"has no {' or '.join(self.tokenizer_files)}")
        try:
            with _quiet_transformers():
                tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the tokenizers library has no specific exception type
            raise self.invalid(f"its tokenizer cannot be read: {first_line(error)}") from error
        embeddings = self.config().vocab_size
        if len(tokenizer) > embeddings:
            raise self.invalid(f"its tokenizer has {len(tokenizer)} tokens and its embedding table {embeddings} rows")
        return tokenizer

    def network(
        self, network_class: type, config: "PretrainedConfig", *, head: tuple[str, ...], classes: tuple[str, ...] = ()
    ) -> nn.Module:
        """Load the network in fp32 and training mode, for any dtype on disk, with outputs in the order of the data's classes.

        Args:
            head: modules that may be missing from the weights or have other shapes there; they are newly initialized.
            classes: the data's class names, for the head and the network's `config`; empty: neither is changed.
        Raises:
            InvalidSetting: the weights cannot be read, do not fit elsewhere, or contain NaN or infinity.
        """
        folder = self._folder(CONFIG, WEIGHTS)
        self._shards(folder)
        try:
            with _quiet_transformers():
                net, report = network_class.from_pretrained(
                    folder,
                    config=config,
                    dtype=torch.float32,
                    local_files_only=True,
                    ignore_mismatched_sizes=True,  # rejected below, except in the head
                    output_loading_info=True,
                )
        except Exception as error:  # from json, safetensors, the unpickler or transformers
            raise self.invalid(f"its weights cannot be read: {why_unreadable(error)}") from error
        new = self._require_fit(net, report, head)
        note_new_layers(net, new)
        complaint = non_finite(dict(net.named_parameters()), _weights_in(folder))
        if complaint:
            raise self.invalid(complaint)
        self._order_classes(net, head, new, classes)
        name_classes(net, classes)
        return net.train()  # from_pretrained returns eval mode, without dropout

    def _require_fit(self, net: nn.Module, report: dict[str, Any], head: tuple[str, ...]) -> list[str]:
        """Check that the weights fit; returns the newly initialized tensors of the head."""

        def of_head(key: str) -> bool:
            return any(key.startswith(f"{name}.") for name in head)

        reshaped = {key: f"{key} {list(shape)} for {list(own)}" for key, shape, own in report["mismatched_keys"]}
        complaint = misfit(
            missing=[key for key in report["missing_keys"] if not of_head(key)],
            unexpected=[key for key in report["unexpected_keys"] if _of_trunk(key, net)],
            reshaped=[text for key, text in reshaped.items() if not of_head(key)],
        )
        if complaint:
            raise self.invalid(complaint)
        new = sorted(filter(of_head, {*report["missing_keys"], *reshaped}))
        if new:
            log.info("newly initialized, because no weights fit: %s", ", ".join(new))
        return new

    def _order_classes(self, net: nn.Module, head: tuple[str, ...], new: list[str], classes: tuple[str, ...]) -> None:
        """Reorder the rows of the head, unless it is new, from the checkpoint's class order to the data's."""
        name, classifier = _classifier(net, head, len(classes))
        if not classes or any(key.startswith(f"{name}.") for key in new):
            return
        stored = tuple(str(net.config.id2label.get(number, number)) for number in range(len(classes)))
        order = _order(stored, classes)
        subject = f"{self.path or self.name}: its classes ({_in_short(stored)})"
        if order is None and not _is_numbered(stored):
            level = logging.INFO if _is_numbered(classes) else logging.WARNING
            log.log(level, "%s are not named as the data's (%s): joined by number", subject, _in_short(classes))
        elif order is not None and order != sorted(order):
            if classifier is None:
                raise self.invalid(
                    f"its classes ({_in_short(stored)}) are in another order than the data's, and its head "
                    "has no Linear whose rows could be moved: rename them in its config.json"
                )
            log.info("%s are brought into the data's order", subject)
            with torch.no_grad():
                for parameter in classifier.parameters():
                    parameter.copy_(parameter[order])

    def _folder(self, *needed: tuple[str, ...], wanted: tuple[str, ...] = ()) -> Path:
        if self.path is not None:
            return self._local_folder()
        return hub_folder(self.name, self.revision, needed=needed, wanted=wanted)

    def _local_folder(self) -> Path:
        folder = Path(self.path).expanduser()
        if not folder.exists():
            raise self.invalid("does not exist")
        if not (folder / "config.json").is_file():
            raise self.invalid("must be a folder with config.json, as save_pretrained writes it")
        odd = [path.name for path in folder.iterdir() if path.exists() and not (path.is_file() or path.is_dir())]
        if odd:
            raise self.invalid(f"its {odd[0]} is no file")  # a pipe, for which a reader would wait
        return folder

    def _shards(self, folder: Path) -> set[Path]:
        """The files that the index of weights names, if that is what is read; they must lie in the folder."""
        index = _weights_in(folder)
        if index not in SHARDED_WEIGHTS:
            return set()
        shards = self._json(folder / index).get("weight_map")
        names = [*dict.fromkeys(map(str, shards.values()))] if isinstance(shards, dict) else [""]
        for name in names:
            if {"/", "\\"} & {*name} or not (folder / name).is_file():
                raise self.invalid(f"its {index} names {name!r}, which is no file in this folder")
        return {folder / name for name in names}

    def _config_json(self, folder: Path) -> dict[str, Any]:
        """Read config.json, without the settings that are always ours."""
        from transformers import CONFIG_MAPPING

        content = self._json(folder / "config.json")
        kind = content.get("model_type")
        if self.model_type not in (None, kind):
            raise self.invalid(f"holds a model of type {kind}; only type {self.model_type} is supported")
        if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
            raise self.invalid(f"its config.json cannot be used: transformers knows no model_type={kind}")
        for key, value in content.items():
            if "layer" in key and isinstance(value, int | float) and value > MOST_LAYERS:
                raise self.invalid(
                    f"its config.json cannot be used: {key}={value}, and {MOST_LAYERS} layers are the most"
                )
        return content

    def _json(self, file: Path) -> dict[str, Any]:
        """Read a mapping, without the settings in NEVER_READ."""

        def ours(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            return {key: value for key, value in pairs if not NEVER_READ.fullmatch(key)}

        try:
            content = read_json_bounded(file, object_pairs_hook=ours, finite=False)
        except Unreadable as error:
            raise self.invalid(f"its {file.name} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise self.invalid(f"its {file.name} is not JSON of a mapping")
        return content


# Checkpoint and data may number the same classes differently: match them by name.

NAMED_AT_MOST = 4


def name_classes(net: nn.Module, classes: tuple[str, ...]) -> None:
    """Write the data's class names to the network's `config`, unless they are empty or just numbers."""
    if classes and not _is_numbered(classes):
        net.config.id2label = dict(enumerate(classes))
        net.config.label2id = {name: number for number, name in enumerate(classes)}


def _order(stored: tuple[str, ...], wanted: tuple[str, ...]) -> list[int] | None:
    """For each wanted name its stored index, ignoring case; None if the names differ."""
    for spelled in (str, _spelling):
        places = {spelled(name): place for place, name in enumerate(stored)}
        names = [spelled(name) for name in wanted]
        if len(places) == len(stored) and len(set(names)) == len(names) and places.keys() == set(names):
            return [places[name] for name in names]
    return None


def _spelling(name: str) -> str:
    """Normalize a name: `Not entailment` and `not_entailment` are equal."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _is_numbered(names: tuple[str, ...]) -> bool:
    """Whether these are class numbers, such as LABEL_0 and 0, instead of names."""
    return all(re.fullmatch(rf"(label|class)?[\s_-]*{number}", name.casefold()) for number, name in enumerate(names))


def _in_short(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED_AT_MOST]) + (", ..." if len(names) > NAMED_AT_MOST else "")


def _classifier(net: nn.Module, head: tuple[str, ...], classes: int) -> tuple[str, nn.Linear | None]:
    """Name and layer of the head's last Linear with one output per class (earlier layers may have that width by chance).

    If there is none, the name of the head's last part.
    """
    inside = tuple(f"{part}." for part in head)
    linears = [
        (name, module)
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == classes and f"{name}.".startswith(inside)
    ]
    return linears[-1] if linears else (head[-1], None)


def _of_trunk(key: str, net: nn.Module) -> bool:
    """Whether a checkpoint key is a weight of the net's trunk, whose own checkpoints have no prefix.

    Heads of other tasks are not, nor is an unused pooler, nor buffers of old files that networks now compute, such as
    position_ids.
    """
    prefix, trunk = f"{net.base_model_prefix}.", net.base_model
    name = key.removeprefix(prefix)
    part = name.partition(".")[0]
    if part == "pooler" or name in dict(trunk.named_buffers()):
        return False
    return key.startswith(prefix) or part in dict(trunk.named_children())


def _weights_in(folder: Path) -> str:
    """Name of the weights file, or index file, that transformers reads; "" if there is none."""
    in_its_order = (file for pair in zip(WEIGHTS, SHARDED_WEIGHTS, strict=True) for file in pair)
    return next((file for file in in_its_order if (folder / file).is_file()), "")


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' table of keys and progress bar; what matters is logged in one line instead."""
    from transformers.utils import logging as transformers_logging

    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
