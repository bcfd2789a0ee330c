"""`python -m sparsefront_kernels.build` compiles all CUDA sources ahead of their first use and prints where they are."""

from sparsefront_kernels.cuda_library import SOURCES, build

if __name__ == "__main__":
    for name in SOURCES:
        print(build(name))
