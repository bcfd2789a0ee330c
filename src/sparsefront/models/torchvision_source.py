"""Where a torchvision model's weights come from: torchvision's own by name, a local checkpoint, or random."""

from dataclasses import dataclass
from typing import Any
from urllib.error import URLError

from torch import Tensor

from sparsefront import progress
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.errors import InvalidSetting
from sparsefront.models.checkpoint import read_weights, weights_file


@dataclass(frozen=True)
class TorchvisionSource:
    """At most one of `weights` and `path`; neither means random initialization.

    Args:
        variant: torchvision's builder, e.g. resnet50.
        weights: a name of the builder's weights, e.g. IMAGENET1K_V1 or DEFAULT.
        path: local checkpoint.
    """

    variant: str
    weights: str | None
    path: str | None

    @property
    def trained_on(self) -> str | None:
        """Of torchvision's own weights the data set, which is one for all; None of others."""
        return None if self.weights is None else "imagenet"

    def check(self) -> None:
        """Raises InvalidSetting: both given, an unknown name, a path that does not exist."""
        if self.weights is not None and self.path is not None:
            raise InvalidSetting("weights", self.weights, "path and weights exclude each other; set one to null")
        if self.weights is not None:
            self._named()
        if self.path is not None:
            weights_file(self.path)

    def fingerprint(self) -> str | dict[str, Any]:
        """JSON-able; a name is named by its file, whose name holds torchvision's digest of the content."""
        if self.path is not None:
            return {"sha256": file_digest(weights_file(self.path))}
        return "random" if self.weights is None else self._named().url.rpartition("/")[2]

    def state_dict(self) -> dict[str, Tensor] | None:
        """The weights on the CPU, downloaded once into torch.hub's cache; None = random.

        Raises:
            InvalidSetting: the download fails, or the checkpoint cannot be read.
        """
        if self.path is not None:
            return read_weights(self.path)
        if self.weights is None:
            return None
        try:
            return dict(self._named().get_state_dict(progress=progress.shown(), check_hash=True, weights_only=True))
        except (URLError, TimeoutError, ConnectionError, RuntimeError) as error:  # RuntimeError: the wrong digest
            raise InvalidSetting(
                "weights", self.weights, f"could not be downloaded ({error}); set model.path to a local checkpoint"
            ) from error

    def validate_channels(self, channels: int | None) -> None:
        """torchvision's weights are for RGB; raises InvalidSetting for anything else."""
        if self.weights is not None and channels != 3:
            raise InvalidSetting(
                "weights", self.weights, f"are for 3 channels and the dataset has {channels}; set weights=null or path"
            )

    @property
    def misfit_name(self) -> str:
        """What a message about unfitting weights should call them."""
        return self.path or f"torchvision's {self.weights}"

    def _named(self) -> Any:
        """The member of torchvision's enumeration."""
        from torchvision.models import get_model_weights

        known = get_model_weights(self.variant).__members__
        if self.weights not in known:
            allowed = f"{self.variant} has {', '.join(known)}, or null for random ones"
            raise InvalidSetting("weights", self.weights, allowed)
        return known[self.weights]
