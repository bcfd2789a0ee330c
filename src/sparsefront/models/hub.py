"""Files of a Hugging Face hub repository: from the local cache where they lie there, else downloaded once."""

import os
from pathlib import Path

from sparsefront import progress
from sparsefront.errors import InvalidSetting, first_line

REMEDY = "set model.path to a local folder"
PROBE_SECONDS = 10


def hub_folder(name: str, revision: str, *, needed: tuple[tuple[str, ...], ...], wanted: tuple[str, ...] = ()) -> Path:
    """The folder of the cached snapshot that holds the files; a cached copy is used without asking the hub.

    Args:
        name: hub id, "owner/name" or "name".
        revision: branch, tag or commit. The folder has the name of the commit.
        needed: one tuple per file, with the names that can serve, best first.
        wanted: files that are fetched with them where the repository has them.
    Raises:
        InvalidSetting: no such repository or revision, none of the names of a needed file in it, or the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download, utils
    from huggingface_hub.errors import HFValidationError

    try:
        cached = [
            next(filter(None, (_cached(name, revision, file) for file in alternatives)), None)
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
    try:  # the needed files last: where they are cached, the extras are taken to be
        with progress.like_ours(utils):
            files = [Path(hf_hub_download(name, file, revision=revision)) for file in (*extras, *chosen)]
    except Exception as error:
        raise _unreachable(name, error) from error
    return files[-1].parent


def _cached(name: str, revision: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file, revision=revision)  # a path; None, or a marker for "known to be absent"
    return Path(found) if isinstance(found, str) else None


def _files_on_hub(name: str, revision: str) -> set[str]:
    """Asks once, where a download would try for half a minute before it says that there is no network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return {file.rfilename for file in HfApi().model_info(name, revision=revision, timeout=PROBE_SECONDS).siblings}
    except RepositoryNotFoundError as error:
        raise InvalidSetting("name", name, f"is not on the Hugging Face hub (or needs a login); {REMEDY}") from error
    except RevisionNotFoundError as error:
        raise InvalidSetting("revision", revision, f"is no branch, tag or commit of {name}") from error
    except Exception as error:  # the hub client lets through its transport's errors, whose package differs by version
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> InvalidSetting:
    reason = f"is not cached and the Hugging Face hub cannot be read ({first_line(error)}); {REMEDY}"
    return InvalidSetting("name", name, reason)


def folder_name(path: str) -> str:
    """The folder's own name; of a snapshot in the hub's cache, whose name is a commit, that of its repository."""
    folder = Path(os.path.abspath(path))
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
