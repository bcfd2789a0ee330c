"""Which kernels a run may use: the fastest, the fastest sparse one, none, the reference, or a forced one."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from sparsefront_kernels import KernelEntry, Problem, entries, families, labeled

from sparsefront.errors import InvalidSetting
from sparsefront.export.packed_layers import store
from sparsefront.inference.autotune import TAKES_ANY_PATTERN, find_candidates
from sparsefront.patterns.base import Pattern
from sparsefront.settings_class import settings_class

MODES = {
    "auto": "per layer the fastest, dense allowed",
    "sparse": "per layer the fastest that is not dense",
    "none": "masked weights multiplied densely",
    "reference": "plain PyTorch from the compressed weight",
}
# A layer's input and output are row-major: kernels between two layouts would only add a transpose that the row-major kernel of
# the same family does faster.
LAYER_LAYOUTS = ("row_major", "feature_major")
DENSE = "dense_linear"  # in 16 bits
SAMPLE_ROWS = 128  # M of the problem with which a forced kernel is checked before any network has run


@settings_class()
class KernelChoice:
    """Settings of group `kernel`.

    On a CPU `auto` and `sparse` run the reference of the family that stores the pattern, untimed.

    Args:
        mode: auto, sparse, none or reference.
        family: force a storage family; of its kernels the fastest runs.
        name: force one kernel, in its fastest layout; or in the layout given as a suffix, as in gathered_sm90_feature_major.
        fuse: rewrite encoder blocks (`inference.fusion`): joined products, fused epilogues, feature-major residual streams.
    Raises:
        InvalidSetting: an unknown name (the known ones are listed), or settings that exclude each other.
    """

    mode: Literal[tuple(MODES)] = "auto"  # type: ignore[valid-type]
    family: str | None = None
    name: str | None = None
    fuse: bool = True

    def __post_init__(self) -> None:
        if self.family is not None and self.family not in families():
            raise InvalidSetting("family", self.family, f"no family has this name; there are {', '.join(families())}")
        if self.name is not None:
            try:
                labeled(self.name)
            except ValueError as error:
                raise InvalidSetting("name", self.name, str(error)) from None
        self._check_together()

    def _check_together(self) -> None:
        key = "name" if self.name is not None else "family"
        if self.mode == "none" and self.forced:
            raise InvalidSetting(key, getattr(self, key), "kernel=none swaps nothing in: force one with kernel=sparse")
        if self.name is None:
            return
        kernel, _ = labeled(self.name)
        if self.family not in (None, kernel.family):
            raise InvalidSetting("name", self.name, f"is of family {kernel.family}, not of family={self.family}")
        if self.mode == "reference" and not kernel.is_reference:
            raise InvalidSetting("name", self.name, "is no reference: force it with kernel=sparse")

    @property
    def forced(self) -> bool:
        return self.family is not None or self.name is not None

    @property
    def swaps_nothing(self) -> bool:
        """Whether nothing is swapped, by mode or by forcing the dense family."""
        forced_family = self.family if self.name is None else labeled(self.name)[0].family
        return self.mode == "none" or forced_family == "dense"

    @property
    def kernels(self) -> str:
        """Text of which kernels may be timed: the same where choices differ in what is chosen by time."""
        return repr((self.family, self.name, self.mode == "reference"))

    @property
    def dense_allowed(self) -> bool:
        """Whether a layer may run dense if that is faster."""
        return self.mode == "auto" and not self.forced

    def wants(self, kernel: KernelEntry, layout: str, canonical: str, device: torch.device) -> bool:
        """Whether to try this kernel in this layout for a layer stored as family `canonical`.

        Callers check afterwards whether its family can store the mask, and whether the kernel can run.
        """
        if self.name is not None and (asked := labeled(self.name)[1]) is not None:
            return layout == asked and self.allows(kernel, canonical, device)
        # a dense low-precision kernel may be faster than a sparse one
        dense = kernel.precision != "none" and self.dense_allowed and not self.runs_plain(device)
        also = (*TAKES_ANY_PATTERN, *["dense"] * dense)
        return layout in LAYER_LAYOUTS and self.allows(kernel, canonical, device, also)

    def allows(self, kernel: KernelEntry, canonical: str, device: torch.device, also: Sequence[str] = ()) -> bool:
        """Whether to try this kernel, in some layout, for a weight stored as family `canonical`.

        Args:
            also: other families that may store it; on a CPU only in low precision, since there each pattern runs the reference
                of the family that is measured on a GPU.
        """
        if self.name is not None:
            return kernel.name == labeled(self.name)[0].name
        plain = self.runs_plain(device)
        if kernel.is_reference != plain:
            return False
        if self.family is not None:
            return kernel.family == self.family
        return kernel.family == canonical or (kernel.family in also and not (plain and kernel.precision == "none"))

    def runs_plain(self, device: torch.device) -> bool:
        """Whether references run."""
        return self.mode == "reference" or device.type == "cpu"

    def check_against(
        self,
        *,
        pattern: Pattern,
        sparsity: float,
        shapes: Mapping[str, tuple[int, int]],
        device: torch.device,
        dtype: torch.dtype,
        precision: str = "none",
    ) -> None:
        """Check, before anything is trained, that a forced kernel can run on some layer, by sample masks of the pattern.

        Args:
            shapes: layer that will be pruned -> [N, K] of its weight.
            device, dtype: of the sparse network.
            precision: of low-precision kernels allowed next to 16-bit ones: none, fp8 or int8.
        Raises:
            InvalidSetting: key `name` or `family`, with the reason.
        """
        if not self.forced or self.swaps_nothing:
            return
        key = "name" if self.name is not None else "family"
        if pattern.tied:
            allowed = f"would run nowhere: pattern {pattern.name} as it is set leaves a narrower dense network; take kernel=auto"
            raise InvalidSetting(key, getattr(self, key), allowed)
        reasons: dict[str, str] = {}
        for n, k in dict.fromkeys(shapes.values()):
            for own, level in pattern.choices((n, k), sparsity):
                unsupported = self._sample_unsupported(own, level, (n, k), device, dtype, precision)
                if unsupported is None:
                    return
                reasons |= unsupported
        why = "; ".join(f"{kernel}: {reason}" for kernel, reason in reasons.items()) or "no layer is pruned"
        raise InvalidSetting(key, getattr(self, key), f"cannot run with pattern {pattern.name} on {device.type}: {why}")

    def _sample_unsupported(
        self,
        pattern: Pattern,
        sparsity: float,
        shape: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype,
        precision: str,
    ) -> dict[str, str] | None:
        """Why no kernel can run on a layer of this shape, by kernel; None where one can."""
        importance = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        # skips the permutation search: every order is stored alike
        mask = pattern.layer_mask(importance, torch.ones_like(importance, dtype=torch.bool), sparsity)
        stored = store(importance, mask, pattern.storage(shape, sparsity)).to(dtype=dtype)
        problem = Problem(m=SAMPLE_ROWS, k=shape[1], n=shape[0], dtype=dtype, device=device)
        low = () if precision == "none" else entries(precision)
        wants = partial(self.wants, canonical=stored.family, device=device)
        candidates = find_candidates(stored, mask, problem, wants, low)
        return None if candidates.usable else candidates.unsupported


def kernel_choice(kernel: str | KernelChoice) -> KernelChoice:
    """The KernelChoice for argument `kernel` of `sf.swap`.

    Raises:
        InvalidSetting: an unknown name.
    """
    if isinstance(kernel, KernelChoice):
        return kernel
    offered = ", ".join((*MODES, *families()))
    unknown = InvalidSetting("kernel", kernel, f"is one of {offered}, the name of a kernel, or a KernelChoice")
    if not isinstance(kernel, str):
        raise unknown
    if kernel in MODES:
        return KernelChoice(kernel)
    if kernel in families():
        return KernelChoice("sparse", family=kernel)
    try:
        labeled(kernel)
    except ValueError:
        raise unknown from None
    return KernelChoice("sparse", name=kernel)


def is_dense(label: str) -> bool:
    """Whether this is a dense kernel, of any precision."""
    kernel = _kernel_of(label)
    return kernel is not None and kernel.family == "dense"


def is_low(label: str) -> bool:
    """Whether this is a low-precision kernel."""
    kernel = _kernel_of(label)
    return kernel is not None and kernel.precision != "none"


def _kernel_of(label: str) -> KernelEntry | None:
    """The kernel; None for other keys of a record, such as "the others"."""
    try:
        return labeled(label)[0]
    except ValueError:
        return None
