"""A kernel in one of its layouts by one name: that of the kernel where row-major, else with the layout behind it.

Benchmark results, plans of swapped networks and configurations have such labels: gathered_sm90, gathered_sm90_feature_major.
"""

from sparsefront_kernels.problem import LAYOUTS


def label(kernel: str, layout: str) -> str:
    """What results call a kernel in a layout."""
    return kernel if layout == "row_major" else f"{kernel}_{layout}"


def kernel_and_layout(label: str) -> tuple[str, str | None]:
    """The kernel's own name, and the layout behind it; None where there is none."""
    layout = next((layout for layout in LAYOUTS if label.endswith(f"_{layout}")), None)
    return label.removesuffix(f"_{layout}"), layout
