// A C interface to NM-SpMM's kernels, whose sources are included from a checkout of it (-I its include/ and its src/). Its own
// launchers take no stream, so that no CUDA graph holds their launches; tiles, windows and shared memory here are as there.
#include "kernel_32x32_4x4.cu"
#include "kernel_32x64_8x4.cu"
#include "kernel_64x64_8x8.cu"
#include "kernel_64x128_8x8.cu"

namespace {

struct Grid {
    int m, n, splits;
    cudaStream_t stream;
};

template <int MS, int NS, int KS, int WS, int MT, int NT, typename... Types, typename... Operands>
int launched(void (*kernel)(Types...), const Grid& grid, Operands... operands) {
    const size_t bytes = 2 * (KS * MS + WS * NS) * sizeof(float) + 2 * (WS * NS / VEC_LEN + KS) * sizeof(int);
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return error;
    kernel<<<dim3(grid.n / NS, grid.m / MS, grid.splits), dim3(NS / NT, MS / MT), bytes, grid.stream>>>(operands...);
    return cudaGetLastError();
}

}  // namespace

#define UNPACKED(NAME, MS, NS, MT, NT, KS, WS)                                                                              \
    case KS * 100 + WS:                                                                                                     \
        return launched<MS, NS, KS, WS, MT, NT>(NAME##_low_sparsity<MS, NS, KS, WS, MT, NT>, grid, x, values, index, y, m, n, k, w);
#define PACKED(NAME, MS, NS, MT, NT, KS, WS)                                                                                \
    case KS * 100 + WS:                                                                                                     \
        return launched<MS, NS, KS, WS, MT, NT>(NAME##_high_sparsity<MS, NS, KS, WS, MT, NT>, grid, x, values, index, columns, y, m, n, k, w);
#define TILE(NAME, MS, NS, MT, NT)                                                                                          \
    case MS * 1000 + NS:                                                                                                    \
        switch (window * 100 + kept) {                                                                                      \
            UNPACKED(NAME, MS, NS, MT, NT, 32, 16)                                                                          \
            UNPACKED(NAME, MS, NS, MT, NT, 32, 12)                                                                          \
            PACKED(NAME, MS, NS, MT, NT, 64, 16)                                                                            \
            PACKED(NAME, MS, NS, MT, NT, 64, 8)                                                                             \
        }                                                                                                                   \
        break;

// Y[m, n] = X[k, m]ᵀ · W; returns a cudaError_t. `columns` is read by the packed kernels (windows of 64) alone. With splits above 1
// Y is added to. The caller checks that tiles divide m and n, and windows k.
extern "C" int sparsefront_nm_spmm(float* x, float* values, int* index, int* columns, float* y, int m, int n, int k, int window,
                                   int kept, int tile_m, int tile_n, int splits, void* stream) {
    const Grid grid{m, n, splits, static_cast<cudaStream_t>(stream)};
    const int w = k / window * kept;
    switch (tile_m * 1000 + tile_n) {
        TILE(kernel_32x32_4x4, 32, 32, 4, 4)
        TILE(kernel_32x64_8x4, 32, 64, 8, 4)
        TILE(kernel_64x64_8x8, 64, 64, 8, 8)
        TILE(kernel_64x128_8x8, 64, 128, 8, 8)
    }
    return cudaErrorInvalidValue;
}
