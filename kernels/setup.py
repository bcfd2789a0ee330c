"""Build a platform wheel if there are prebuilt libraries (`python -m sparsefront_kernels.build --prebuilt`).

Everything else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class KernelsDistribution(Distribution):
    """Platform-specific if there are prebuilt libraries."""

    def has_ext_modules(self) -> bool:
        return any(Path(__file__).parent.glob("sparsefront_kernels/prebuilt/*.so"))


class KernelsWheel(bdist_wheel):
    """Works with every Python version: libraries are loaded with ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=KernelsDistribution, cmdclass={"bdist_wheel": KernelsWheel})
