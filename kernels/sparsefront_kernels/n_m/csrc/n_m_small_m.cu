// Y = X · W^T + bias for an n:m weight and few rows of X; half, bfloat16 and float. The kernel is that of
// ../../cuda/thread_per_output.cuh; see ../README.md.
#include "../../cuda/thread_per_output.cuh"

namespace {

// Limits registers, so that enough warps per SM keep the weight stream in flight.
template <typename T, int ROWS>
constexpr int BLOCKS_PER_SM = sizeof(T) == 2 && ROWS == 1 ? 3 : 2;

template <typename T, int BITS, int KEPT, int ROWS>
__global__ void __launch_bounds__(thread_per_output::MOST_THREADS, BLOCKS_PER_SM<T, ROWS>)
    n_m_small_m_kernel(const __grid_constant__ thread_per_output::Problem problem) {
    thread_per_output::product<T, BITS, 1, KEPT, ROWS>(problem);
}

struct NMSmallM {
    template <typename T, int ROWS>
    static auto kernel(const thread_per_output::Arguments& arguments) {
        switch (arguments.bits) {
            case 2:
                if (arguments.kept == 1) return n_m_small_m_kernel<T, 2, 1, ROWS>;
                if (arguments.kept == 2) return n_m_small_m_kernel<T, 2, 2, ROWS>;
                return n_m_small_m_kernel<T, 2, 0, ROWS>;
            case 4: return n_m_small_m_kernel<T, 4, 0, ROWS>;
            case 5: return n_m_small_m_kernel<T, 5, 0, ROWS>;
            default: return n_m_small_m_kernel<T, 6, 0, ROWS>;
        }
    }
};

}  // namespace

// Returns a cudaError_t. The caller checks shapes, and that `shared_bytes` hold the inputs of a segment and all sums.
extern "C" int sparsefront_n_m_small_m(const thread_per_output::Arguments* arguments, void* stream) {
    return thread_per_output::launch_any<NMSmallM>(*arguments, stream);
}
