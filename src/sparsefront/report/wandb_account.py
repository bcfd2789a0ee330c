"""Whether this user has a W&B account, found out without importing wandb, which could ask for one."""

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_URL = "https://api.wandb.ai"


def has_api_key() -> bool:
    """True where `WANDB_API_KEY` is set or the netrc file knows W&B's host (`WANDB_BASE_URL`, else the public one)."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    return _netrc_knows(urlsplit(os.environ.get("WANDB_BASE_URL") or DEFAULT_URL).netloc)


def _netrc_knows(host: str) -> bool:
    named = os.environ.get("NETRC")
    candidates = [Path(named)] if named else [Path("~/.netrc"), Path("~/_netrc")]
    for path in candidates:
        try:
            # Looked up by the host's own name: a `default` entry is a password for other machines.
            return host in netrc.netrc(path.expanduser()).hosts
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError):
            return False
    return False
