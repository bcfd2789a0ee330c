"""Tables that were recorded under old names: read with the names of today, a user's own too."""

import json
import re
from pathlib import Path

import pytest
import torch
from sparsefront_kernels import entry, names, renamed
from sparsefront_kernels.bench.row import COLUMNS, read_rows
from sparsefront_kernels.gathered.cuda.tuning import LAUNCHES, CudaProblem
from sparsefront_kernels.performance_model.kernel_latency import FAMILIES
from sparsefront_kernels.performance_model.measurements.table import latency_table
from sparsefront_kernels.performance_model.rates import device_rates
from sparsefront_kernels.performance_model.work import CONSTANTS
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import chosen_launch

ROOT = Path(__file__).resolve().parents[2]
GPU = "Some GPU"
OLD_LAUNCHES = {
    "gpu": GPU,
    "kernels": {
        "gathered_sm90": {
            "version": 2,
            "entries": {
                "m=64 k=64 n=128 steps=1": {
                    "block_m": 64,
                    "blocks_per_sm": 2,
                    "group": 16,
                    "latency_us": 3.4,
                    "overlap": False,
                    "prefetch": False,
                    "splits": 1,
                    "stages": 4,
                }
            },
        },
        "gathered_fp32_cuda": {
            "version": 1,
            "entries": {"m=8 k=8 n=8 width=32 kept=4": {"columns": 8, "slices": 2, "stages": 4, "splits": 1}},
        },
        "gathered_skinny_row_x": {
            "version": 1,
            "entries": {"m=8 k=8 n=8 width=32 bytes=2 chunks=4": {"gather": "lanes", "overlap": "apart"}},
        },
    },
}
OLD_RATES = {
    "gpu": GPU,
    "processors": 7,
    "dense_tflops": {"fp16": 100.0},
    "copy_gb_per_s": 1000.0,
    "constants": {"hopper fp16": {"launch": 1.0, "item": 2.0, "step": 3.0}, "cublas_wt tf32": {"launch": 4.0}},
    "errors": {"cuda_cores fp32": {"rows": 3}},
}
OLD_LATENCIES = {
    "gpu": GPU,
    "made_with": {},
    "columns": [
        "family",
        "granularity",
        "distribution",
        "dtype",
        "m",
        "k",
        "n",
        "sparsity",
        "kernel",
        "latency_us",
        "dense_us",
    ],
    "measured": [["gathered", 32, "equal", "fp32", 1, 8, 8, 0.5, "gathered_skinny", 1.0, 2.0]],
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache folder; nothing is shipped for the GPU."""

    def forget():
        store.tuned_kernel.cache_clear()
        chosen_launch.cache_clear()
        device_rates.cache_clear()

    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def write(path: Path, content: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gathered_fp32_cuda", "gathered_simt"),
        ("gathered_skinny_feature_major", "gathered_small_m_feature_major"),
        ("gathered_skinny_row_x", "gathered_small_m_row_x"),
        ("gathered_tf32_triton_row_to_feature", "gathered_triton_tf32_row_to_feature"),
        ("gathered_sm90_feature_to_row", "gathered_sm90_feature_to_row"),
        ("triton_bsr", "triton_bsr"),
    ],
)
def test_kernels_with_their_layouts(old, new):
    assert renamed.kernel_name(old) == renamed.kernel_name(new) == new


def test_every_new_name_is_a_kernel_and_no_old_one_is():
    assert set(renamed.KERNELS.values()) <= set(names()) and not renamed.KERNELS.keys() & set(names())
    assert set(renamed.MODEL_KERNELS.values()) <= FAMILIES.keys()
    assert set(renamed.MODEL_CONSTANTS.values()) <= CONSTANTS.keys()


def test_an_old_name_is_no_alias_but_its_message_names_the_new_one():
    with pytest.raises(
        ValueError, match=r"no kernel is called 'gathered_skinny' \(it is now 'gathered_small_m'\); there are "
    ):
        entry("gathered_skinny")


def test_launches_that_a_user_measured_still_count(cache, monkeypatch):
    write(store.user_file(GPU), OLD_LAUNCHES)
    monkeypatch.setattr("sparsefront_kernels.tuning.launches._model", lambda device: GPU)
    launch = LAUNCHES.launch_for(CudaProblem(64, 64, 128, 1, 1), torch.device("cpu"))
    assert (launch.block_m, launch.raster_swizzle, launch.pdl) == (64, 16, False)
    (simt,) = store.tuned_kernel(GPU, "gathered_simt", 1).entries.values()
    assert simt == {"columns": 8, "warp_split_k": 2, "stages": 4, "splits": 1}
    (small_m,) = store.tuned_kernel(GPU, "gathered_small_m_row_x", 1).entries.values()
    assert small_m == {"gather": "lanes", "pdl": "off"}


def test_what_is_saved_beside_old_launches_has_names_of_today_only(cache):
    path = write(store.user_file(GPU), OLD_LAUNCHES)
    store.tuned_kernel(GPU, "another", 1).save()
    assert json.loads(path.read_text())["kernels"].keys() == {
        "another",
        "gathered_sm90",
        "gathered_simt",
        "gathered_small_m_row_x",
    }
    assert not re.search("skinny|fp32_cuda|overlap|slices|apart|steps", path.read_text())


def test_a_table_of_today_counts_before_an_old_one():
    tables = {
        "gathered_skinny": {"version": 1, "entries": {"old": {}}},
        "gathered_small_m": {"version": 1, "entries": {"new": {}}},
    }
    for order in (tables, dict(reversed(tables.items()))):
        assert renamed.tuned_kernels(order) == {"gathered_small_m": tables["gathered_small_m"]}


def test_rates_and_latencies_of_a_user_are_found_in_the_old_folders(cache):
    write(cache / "model" / "some_gpu.json", OLD_RATES)
    write(cache / "forecast" / "some_gpu.json", OLD_LATENCIES)
    rates, table = device_rates(GPU), latency_table(GPU)
    assert rates.num_sms == 7
    assert rates.constants["gathered_sm90 fp16"] == {"launch": 1.0, "work_tile": 2.0, "k_block": 3.0}
    assert rates.constants.keys() == {"gathered_sm90 fp16", "cublas_wt tf32"} and rates.errors.keys() == {
        "gathered_simt fp32"
    }
    assert [one.kernel for one in table.measured] == ["gathered_small_m"]


def test_old_results_are_read_with_names_of_today(tmp_path):
    path = tmp_path / "rows.csv"
    row = dict.fromkeys(COLUMNS, "1") | {"kernel": "gathered_fp32_cuda_feature_major", "shape": "skinny8-64x64"}
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    (read,) = read_rows(path)
    assert (read["kernel"], read["shape"], read["m"]) == ("gathered_simt_feature_major", "small_m8-64x64", "1")
