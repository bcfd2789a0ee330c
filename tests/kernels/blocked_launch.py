"""A launch of `blocked_sm90` with parameters of one's own, past what tuning would choose."""

from sparsefront_kernels.blocked.sm90 import launch_blocked_sm90


def launch_blocked(packed, x, y, m, launch, *, x_feature_major=False, bias=None):
    launch_blocked_sm90(
        x, y, packed, m=m, launch=launch, x_feature_major=x_feature_major, y_feature_major=False, bias=bias
    )
