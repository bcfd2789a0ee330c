"""Download data once, build derived files once, and pin hub data to a commit."""

import http.client
import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from sparsefront import progress
from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.content_digest import file_checksum, find_damage
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import held_alone
from sparsefront.errors import InvalidSetting, first_line

if TYPE_CHECKING:
    import datasets


# Expensive files, built once even if several processes need them.

log = logging.getLogger(__name__)


def build_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return `target`, built by the first process that needs it while others wait. A damaged file is reported and rebuilt.

    Args:
        target: final path; its folder is created, and its checksum is stored next to it.
        make: writes the file to the temporary path it is given, which is renamed to `target` when complete, so that a
            killed process leaves no partial file.
    """
    if target.exists() and _damage(target) is None:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with held_alone(target):
        damage = _damage(target) if target.exists() else "it is not there"
        if damage is None:
            return target
        if target.exists():
            log.warning("damaged, discarded and made again: %s: %s", target, damage)
        with whole_file(target) as unfinished:
            make(unfinished)
            with whole_file(_checksum_file(target)) as beside:
                beside.write_text(json.dumps({target.name: file_checksum(unfinished)}), encoding="utf-8")
    return target


def _damage(target: Path) -> str | None:
    """Describe how the file differs from its checksum; None if it does not, or has none."""
    beside = _checksum_file(target)
    try:
        return find_damage(target.parent, read_json_bounded(beside)) if beside.exists() else None
    except ValueError as error:
        return f"{beside.name} cannot be read ({error})"


def _checksum_file(target: Path) -> Path:
    return target.with_name(target.name + ".sha256")


ANSWER_TIMEOUT_S = 8
COMMIT = re.compile("[0-9a-f]{40}")


def require_reachable(url: str, *, missing: str) -> None:
    """Fail quickly where a library would retry for half a minute and report something else.

    Args:
        url: of the server; any response counts.
        missing: what to set instead, for the message.
    Raises:
        InvalidSetting: no response in time; names `path`.
    """
    failure: list[object] = [f"no answer within {ANSWER_TIMEOUT_S} s"]

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_TIMEOUT_S).close()
            failure.clear()
        except (urllib.error.HTTPError, http.client.HTTPException):
            failure.clear()  # an error response is a response
        except OSError as error:
            failure[:] = [getattr(error, "reason", error)]

    # Socket timeouts are per address, and name resolution has none: use a thread that can be abandoned.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_TIMEOUT_S)
    if failure:
        raise InvalidSetting("path", None, f"{url} cannot be reached ({failure[0]}); {missing}")


def hub_split(hub_id: str, *, config: str | None, revision: str, split: str, missing: str) -> "datasets.Dataset":
    """Load a split of a data set from the Hugging Face hub, or from the library's cache with `HF_HUB_OFFLINE=1`.

    Args:
        hub_id: owner/name; `config` its configuration; `revision` a branch, tag or commit of it.
        missing: what to set instead, for the message.
    Raises:
        InvalidSetting: it cannot be loaded; names `path` and gives the reason.
    """
    with _asking_hub(hub_id, missing=missing):
        import datasets

        dataset = datasets.load_dataset(hub_id, config, revision=revision, split=split)
    _require_revision(dataset, hub_id, revision, missing)
    return dataset


def hub_split_names(hub_id: str, *, config: str | None, revision: str, missing: str) -> list[str]:
    """Names of the splits of a data set on the hub; arguments and errors as in `hub_split`."""
    with _asking_hub(hub_id, missing=missing):
        import datasets

        return list(datasets.get_dataset_split_names(hub_id, config, revision=revision))


@contextmanager
def _asking_hub(hub_id: str, *, missing: str) -> Iterator[None]:
    from huggingface_hub import constants
    from huggingface_hub import utils as hub_utils

    if not constants.HF_HUB_OFFLINE:
        require_reachable(constants.ENDPOINT, missing=missing)
    import datasets

    try:
        with progress.sync_progress_bars(datasets.utils), progress.sync_progress_bars(hub_utils):
            yield
    except Exception as error:  # the libraries raise some thirty types, all of which mean that there is no data
        reason = first_line(error)
        raise InvalidSetting(
            "path", None, f"{hub_id} could not be loaded from the hub ({reason}); {missing}"
        ) from error


def _require_revision(found: "datasets.Dataset", hub_id: str, revision: str, missing: str) -> None:
    """Check the revision: if the hub does not respond, the library silently uses its newest cached copy."""
    copies = {Path(file["filename"]).parent.name for file in found.cache_files}
    if COMMIT.fullmatch(revision) and (others := {copy for copy in copies if COMMIT.fullmatch(copy)} - {revision}):
        why = f"of {hub_id} cannot be loaded, the copy on this machine is of {', '.join(sorted(others))}; {missing}"
        raise InvalidSetting("revision", revision, why)


def hub_commit(hub_id: str, revision: str, *, cache_dir: Path, missing: str) -> str:
    """Resolve a revision to a commit: as recorded in `cache_dir` on first use; else from the hub or, if it does not respond,
    the libraries' cache. The data thus stay the same for the lifetime of `cache_dir`.

    Args:
        hub_id: owner/name; `revision` a branch, tag or commit of it.
        missing: what to set instead, for the message.
    Raises:
        InvalidSetting: the hub has no such revision, or neither hub nor cache can resolve it.
    """
    if COMMIT.fullmatch(revision):
        return revision

    def note(file: Path) -> None:
        file.write_text(_ask_commit(hub_id, revision, missing=missing), encoding="utf-8")

    name = f"{hub_id}@{revision}".replace("/", "--")
    return build_once(cache_dir / "downloads" / "revisions" / name, note).read_text(encoding="utf-8")


def _ask_commit(hub_id: str, revision: str, *, missing: str) -> str:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RevisionNotFoundError

    reason: object = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            require_reachable(constants.ENDPOINT, missing=missing)
            return HfApi().dataset_info(hub_id, revision=revision, timeout=ANSWER_TIMEOUT_S).sha
        except RevisionNotFoundError as error:
            raise InvalidSetting("revision", revision, f"is no branch, tag or commit of {hub_id}") from error
        except Exception as error:  # includes transport errors, whose package depends on the hub client's version
            reason = error.allowed if isinstance(error, InvalidSetting) else error
    cached = try_to_load_from_cache(hub_id, "README.md", repo_type="dataset", revision=revision)
    if isinstance(cached, str):
        return Path(cached).parent.name
    raise InvalidSetting("revision", revision, f"of {hub_id} is unknown here ({reason}); {missing}")
