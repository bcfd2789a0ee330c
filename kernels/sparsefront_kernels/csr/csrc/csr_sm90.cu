// Y = X · W^T + bias for a weight of single weights, wherever they are; half, bfloat16 and float.
// The kernel is that of ../../cuda/thread_per_row.cuh; see ../README.md.
#include "../../cuda/thread_per_row.cuh"

namespace {

template <typename T, int BLOCK, int LANE_UNITS>
__global__ void __launch_bounds__(thread_per_row::LANES * thread_per_row::MOST_WARPS, 1) csr_sm90_kernel(const __grid_constant__ thread_per_row::Problem problem) {
    thread_per_row::product<T, BLOCK, LANE_UNITS>(problem);
}

struct CsrCuda {
    static constexpr bool BLOCKS = false;
    template <typename T, int BLOCK, int LANE_UNITS>
    static constexpr auto kernel() {
        return csr_sm90_kernel<T, BLOCK, LANE_UNITS>;
    }
};

}  // namespace

// Returns a cudaError_t. The caller checks shapes.
extern "C" int sparsefront_csr_sm90(const thread_per_row::Arguments* arguments, void* stream) {
    return thread_per_row::launch_any<CsrCuda>(*arguments, stream);
}
