"""What can run a LayerNorm of columns: Triton's kernel, or the Hopper kernel in one of its divisions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NormLaunch:
    """A kernel, and for the Hopper kernel how a norm is divided.

    Args:
        kernel: "triton", which takes every norm, or "cuda".
        cluster: blocks that share the features of a tile.
        columns: of a tile.
        threads: of a block.
    """

    kernel: str = "triton"
    cluster: int = 0
    columns: int = 0
    threads: int = 0

    def __str__(self) -> str:
        if self.kernel == "triton":
            return self.kernel
        return f"{self.kernel}_cluster{self.cluster}_columns{self.columns}_threads{self.threads}"


TRITON = NormLaunch()
# Division -> the most features that its threads hold, eight rows each. Chosen by count, not by time. With many columns all SMs
# are busy whatever the division: one block per SM without an exchange between blocks, or two that read 128 bytes of a row at a
# time. With few columns (32 tiles at M = 1024) a cluster of four gives nearly every SM of an H200 a block.
CUDA_DIVISIONS = {
    NormLaunch("cuda", cluster=1, columns=32, threads=512): 1024,
    NormLaunch("cuda", cluster=2, columns=64, threads=512): 1024,
    NormLaunch("cuda", cluster=4, columns=32, threads=256): 2048,
}
