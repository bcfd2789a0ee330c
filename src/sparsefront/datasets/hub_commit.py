"""Which commit a branch or tag of a data set on the Hugging Face hub stands for."""

from pathlib import Path

from sparsefront.datasets.build_once import build_once
from sparsefront.datasets.download import ANSWER_TIMEOUT_S, COMMIT, require_reachable
from sparsefront.errors import InvalidSetting


def hub_commit(hub_id: str, revision: str, *, cache_dir: Path, missing: str) -> str:
    """The commit: noted in `cache_dir` when it was first needed; else as the hub says, or, without an answer as the
    libraries' own cache on this machine says. So data stay what they were until `cache_dir` goes.

    Args:
        hub_id: owner/name; `revision` a branch, tag or commit of it.
        missing: what to set instead, for the message.
    Raises:
        InvalidSetting: the hub has no such revision, or neither hub nor cache can tell.
    """
    if COMMIT.fullmatch(revision):
        return revision

    def note(file: Path) -> None:
        file.write_text(_asked(hub_id, revision, missing=missing))

    name = f"{hub_id}@{revision}".replace("/", "--")
    return build_once(cache_dir / "downloads" / "revisions" / name, note).read_text()


def _asked(hub_id: str, revision: str, *, missing: str) -> str:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RevisionNotFoundError

    reason: object = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        try:
            require_reachable(constants.ENDPOINT, missing=missing)
            return HfApi().dataset_info(hub_id, revision=revision, timeout=ANSWER_TIMEOUT_S).sha
        except RevisionNotFoundError as error:
            raise InvalidSetting("revision", revision, f"is no branch, tag or commit of {hub_id}") from error
        except (
            Exception
        ) as error:  # the hub client lets through its transport's errors, whose package differs by version
            reason = error.allowed if isinstance(error, InvalidSetting) else error
    cached = try_to_load_from_cache(hub_id, "README.md", repo_type="dataset", revision=revision)
    if isinstance(cached, str):
        return Path(cached).parent.name
    raise InvalidSetting("revision", revision, f"of {hub_id} is unknown here ({reason}); {missing}")
