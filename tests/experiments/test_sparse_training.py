"""Parts of a training step by the names of their kernels, and how rows are shared out between blocks of the grid."""

import pytest
from sparsefront_kernels.blocked.sm90_training import splits_for

from experiments.sparse_training.study import part_of


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("void (anonymous namespace)::blocked_gradient_kernel<__nv_bfloat16>(Problem)", "weight gradient"),
        ("add_splits_kernel(float4 const*, float4*, float4*, long long, long long, int)", "weight gradient"),
        ("void pack_panels_kernel<__half>(float const*, int4 const*, uint4*, uint4*, int)", "packing"),
        ("void blocked_sm90_kernel<__half, 64, 0, 0, false>(Problem)", "sparse products"),
        ("nvjet_hsh_192x192_64x4_2x1_v_bz_coopA_TNT", "dense products"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("triton_per_fused_native_layer_norm_3", "rest"),
    ],
)
def test_kernels_of_a_step(kernel, part):
    assert part_of(kernel) == part


def test_few_pairs_share_rows():
    few, many = splits_for(12_288, (6,) * 6, 132), splits_for(12_288, (8,) * 128, 132)
    assert few > 4 and many == 1 and splits_for(100, (6,) * 6, 132) == 1
