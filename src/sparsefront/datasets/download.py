"""Data from the network: asked for once, and given up on quickly when the network is not there."""

import http.client
import re
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from sparsefront import progress
from sparsefront.errors import InvalidSetting, first_line

if TYPE_CHECKING:
    import datasets

ANSWER_TIMEOUT_S = 8
COMMIT = re.compile("[0-9a-f]{40}")


def require_reachable(url: str, *, missing: str) -> None:
    """Raise soon where a library would retry for half a minute and then speak of something else.

    Args:
        url: of the server; any answer from it will do.
        missing: what to set instead, for the message.
    Raises:
        InvalidSetting: no answer in time; names `path`.
    """
    failure: list[object] = [f"no answer within {ANSWER_TIMEOUT_S} s"]

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER_TIMEOUT_S).close()
            failure.clear()
        except (urllib.error.HTTPError, http.client.HTTPException):
            failure.clear()  # an answer, though not a friendly one
        except OSError as error:
            failure[:] = [getattr(error, "reason", error)]

    # A timeout of the socket counts per address, and looking up the name has none: only a thread can be left in time.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_TIMEOUT_S)
    if failure:
        raise InvalidSetting("path", None, f"{url} cannot be reached ({failure[0]}); {missing}")


def hub_split(hub_id: str, *, config: str | None, revision: str, split: str, missing: str) -> "datasets.Dataset":
    """One split of a data set on the Hugging Face hub, or of the library's own cache under `HF_HUB_OFFLINE=1`.

    Args:
        hub_id: owner/name; `config` its configuration; `revision` a branch, tag or commit of it.
        missing: what to set instead, for the message.
    Raises:
        InvalidSetting: it could not be had, for whatever reason; names `path` and carries the reason.
    """
    from huggingface_hub import constants
    from huggingface_hub import utils as hub_utils

    if not constants.HF_HUB_OFFLINE:
        require_reachable(constants.ENDPOINT, missing=missing)
    import datasets

    try:
        with progress.like_ours(datasets.utils), progress.like_ours(hub_utils):
            found = datasets.load_dataset(hub_id, config, revision=revision, split=split)
    except Exception as error:  # the libraries below raise some thirty kinds; each means that there is no data
        reason = first_line(error)
        raise InvalidSetting(
            "path", None, f"{hub_id} could not be loaded from the hub ({reason}); {missing}"
        ) from error
    _require_revision(found, hub_id, revision, missing)
    return found


def _require_revision(found: "datasets.Dataset", hub_id: str, revision: str, missing: str) -> None:
    """Where the hub does not answer, the library takes the newest copy of its cache, whatever was asked for."""
    copies = {Path(file["filename"]).parent.name for file in found.cache_files}
    if COMMIT.fullmatch(revision) and (others := {copy for copy in copies if COMMIT.fullmatch(copy)} - {revision}):
        why = f"of {hub_id} cannot be loaded, the copy on this machine is of {', '.join(sorted(others))}; {missing}"
        raise InvalidSetting("revision", revision, why)
