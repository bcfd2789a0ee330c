"""A launch of the blocked Hopper kernel with parameters of one's own, past what tuning would choose."""

from sparsefront_kernels.blocked.cuda.spmm import launch_blocked_sm90


def launch_blocked(packed, x, y, m, launch, *, x_feature_major=False, bias=None):
    launch_blocked_sm90(
        x,
        y,
        panels=packed.panels,
        k_blocks=packed.k_blocks,
        outputs=packed.outputs,
        lengths=packed.lengths,
        box=packed.box,
        m=m,
        n=packed.n,
        k=packed.k,
        launch=launch,
        x_feature_major=x_feature_major,
        y_feature_major=False,
        bias=bias,
    )
