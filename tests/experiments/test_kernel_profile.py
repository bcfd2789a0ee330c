"""Which kernels a forward runs: products told from the rest by their names, and the profiles beside the rows."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from experiments.harness import measure
from experiments.harness.rows import read_lines


def test_products_differ_from_attention():
    ours = "void sparsefront::gathered_sm90_cluster_kernel<__half>(sparsefront::Problem)"
    products = [
        "nvjet_hsh_192x192_64x4_2x1_v_bz_coopA_TNT",
        "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n",
        ours,
        "_blocked_triton_kernel",
        "_n_m_rebuild_kernel",
    ]
    others = [
        "void pytorch_flash::flash_fwd_kernel<>",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80",
        "_layer_norm_columns_kernel",
    ]
    assert all(map(measure.is_product, products)) and not any(map(measure.is_product, others))
    times = {ours: 60.0, "_layer_norm_columns_kernel": 40.0}
    assert measure.gemm_share(times) == pytest.approx(0.6) and measure.gemm_share({}) is None


def test_several_profiles_all_stay(tmp_path):
    file = tmp_path / "profile.csv"

    def write(batch: int) -> None:
        for time in (1.0, 2.0):  # the second takes the place of the first
            measure.write_profile(file, {"model": "bert_base", "batch": str(batch)}, "sparse", {"kernel": time})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(12)))
    lines = [line for line in read_lines(file) if line["kernel"] == "kernel"]
    assert sorted((int(line["batch"]), line["us_per_forward"]) for line in lines) == [(n, "2.0") for n in range(12)]
