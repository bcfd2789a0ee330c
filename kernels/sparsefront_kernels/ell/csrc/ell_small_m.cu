// Y = X · W^T + bias for a weight of equally many blocks in every row of blocks and few rows of X; half,
// bfloat16 and float. The kernel is that of ../../cuda/thread_per_output.cuh, with all inputs as one group; see ../README.md.
#include "../../cuda/thread_per_output.cuh"

namespace {

// Two chunks of float and 16-bit columns take more registers than two blocks would leave.
template <typename T>
constexpr int BLOCKS_PER_SM = sizeof(T) == 4 ? 1 : 2;

template <typename T, int BLOCK, int ROWS>
__global__ void __launch_bounds__(thread_per_output::MOST_THREADS, BLOCKS_PER_SM<T>) ell_small_m_kernel(const __grid_constant__ thread_per_output::Problem problem) {
    thread_per_output::product<T, 16, BLOCK, thread_per_output::ONE_GROUP, ROWS>(problem);
}

struct EllSmallM {
    template <typename T, int ROWS>
    static auto kernel(const thread_per_output::Arguments& arguments) {
        switch (arguments.block) {
            case 1: return ell_small_m_kernel<T, 1, ROWS>;
            case 2: return ell_small_m_kernel<T, 2, ROWS>;
            default: return ell_small_m_kernel<T, 4, ROWS>;
        }
    }
};

}  // namespace

// Returns a cudaError_t. The caller checks shapes, and that `shared_bytes` hold all inputs and all sums.
extern "C" int sparsefront_ell_small_m(const thread_per_output::Arguments* arguments, void* stream) {
    return thread_per_output::launch_any<EllSmallM>(*arguments, stream);
}
