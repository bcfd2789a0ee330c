"""Names that recorded tables may hold and that have changed since: each function returns the name of today.

Only what reads a recorded table calls these functions: benchmark results, tuned launches, rates, measured latencies. Nowhere
else is an old name accepted.
"""

import re
from typing import Any

KERNELS = {
    "gathered_fp32_cuda": "gathered_simt",
    "gathered_skinny": "gathered_small_m",
    "gathered_tf32_triton": "gathered_triton_tf32",
}
# kernel -> launch parameter -> name of today
LAUNCH_PARAMETERS = {
    "gathered_sm90": {"group": "raster_swizzle", "overlap": "pdl"},
    "gathered_simt": {"slices": "warp_split_k"},
    "gathered_small_m": {"overlap": "pdl"},
    "gathered_small_m_row_x": {"overlap": "pdl"},
}
MODEL_KERNELS = {
    "hopper": "gathered_sm90",
    "cuda_cores": "gathered_simt",
    "skinny": "gathered_small_m",
    "triton": "gathered_triton",
}
MODEL_CONSTANTS = {"item": "work_tile", "step": "k_block"}


def kernel_name(name: str) -> str:
    """Of a kernel, with or without its layout behind it."""
    for old, new in KERNELS.items():
        if name == old or name.startswith(f"{old}_"):
            return new + name.removeprefix(old)
    return name


def shape_name(name: str) -> str:
    """Of a shape of the benchmark."""
    return re.sub(r"^skinny(?=\d+-)", "small_m", name)


def result_row(row: dict[str, str]) -> dict[str, str]:
    """A row of the benchmark's results as text."""
    return row | {"kernel": kernel_name(row["kernel"]), "shape": shape_name(row["shape"])}


def tuned_kernels(kernels: dict[str, Any]) -> dict[str, Any]:
    """Kernel -> its table of launches, as `tuning.store` keeps it; a table under the name of today counts first."""
    now = {
        kernel_name(name): _launches(kernel_name(name), table)
        for name, table in kernels.items()
        if name not in KERNELS.values()
    }
    return now | {name: _launches(name, table) for name, table in kernels.items() if name in KERNELS.values()}


def device_rates(content: dict[str, Any]) -> dict[str, Any]:
    """Rates and constants of a GPU model, as `performance_model.rates` keeps them."""
    now = {"num_sms" if name == "processors" else name: part for name, part in content.items()}
    constants, errors = now.get("constants", {}), now.get("errors", {})
    return now | {
        "constants": {
            _model_key(key): {MODEL_CONSTANTS.get(name, name): value for name, value in found.items()}
            for key, found in constants.items()
        },
        "errors": {_model_key(key): found for key, found in errors.items()},
    }


def _model_key(key: str) -> str:
    kernel, _, dtype = key.rpartition(" ")
    return f"{MODEL_KERNELS.get(kernel, kernel)} {dtype}"


def _launches(kernel: str, table: dict[str, Any]) -> dict[str, Any]:
    names = LAUNCH_PARAMETERS.get(kernel, {})
    entries = {
        re.sub(r"\bsteps=", "k_blocks=", key): {
            names.get(name, name): "off" if value == "apart" else value for name, value in entry.items()
        }
        for key, entry in table["entries"].items()
    }
    return table | {"entries": entries}
