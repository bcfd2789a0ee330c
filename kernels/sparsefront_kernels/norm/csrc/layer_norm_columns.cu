// The kernel of column_norm.cuh for half and bfloat16, in the divisions that norm/launch.py names.
#include "column_norm.cuh"

namespace {

using column_norm::Arguments;

// VECTORS: numbers of rows that a thread can hold, ascending; the first that covers the features is launched, so that a thread
// does little for rows that do not exist. SLOTS: of the ring without a residual; what shared memory has left for it.
template <typename T, int CLUSTER, int COLUMNS, int THREADS, int SLOTS, int BLOCKS, int... VECTORS>
cudaError_t launch_division(const Arguments& problem, cudaStream_t stream) {
    constexpr int ROWS = THREADS / (COLUMNS / column_norm::EIGHT);
    const int features = (problem.d + CLUSTER - 1) / CLUSTER, rows = (features + ROWS - 1) / ROWS;
    cudaError_t error = cudaErrorInvalidValue;
    const auto launched = [&](auto plain, auto with_residual) {
        error = problem.residual == nullptr ? column_norm::launch<decltype(plain)>(problem, stream)
                                            : column_norm::launch<decltype(with_residual)>(problem, stream);
        return true;
    };
    static_cast<void>(((rows <= VECTORS && launched(column_norm::Shape<T, CLUSTER, COLUMNS, THREADS, VECTORS, SLOTS, BLOCKS, false>{},
                                                    column_norm::Shape<T, CLUSTER, COLUMNS, THREADS, VECTORS, SLOTS / 2, BLOCKS, true>{})) ||
                       ...));
    return error;
}

template <typename T>
cudaError_t launch_any(const Arguments& problem, cudaStream_t stream) {
    const auto is = [&](int cluster, int columns, int threads) {
        return problem.cluster == cluster && problem.columns == columns && problem.threads == threads;
    };
    if (is(1, 32, 512)) return launch_division<T, 1, 32, 512, 24, 1, 6, 8>(problem, stream);
    if (is(2, 64, 512)) return launch_division<T, 2, 64, 512, 24, 1, 6, 8>(problem, stream);
    if (is(4, 32, 256)) return launch_division<T, 4, 32, 256, 24, 2, 4, 8>(problem, stream);
    return cudaErrorInvalidValue;
}

}  // namespace

// Returns a cudaError_t. The caller checks that m is a positive multiple of 8, all matrices begin at a multiple of 16 bytes and rows
// are a multiple of 8 elements apart, and that there is a residual where there is x_bias or sums. Other divisions than those above,
// and more features than one holds, are an error.
extern "C" int sparsefront_layer_norm_columns(const Arguments* arguments, void* stream) {
    if (arguments->d < 1 || arguments->m < 1 || arguments->m % column_norm::EIGHT != 0) return cudaErrorInvalidValue;
    const auto queue = static_cast<cudaStream_t>(stream);
    return arguments->is_bfloat16 ? launch_any<__nv_bfloat16>(*arguments, queue) : launch_any<__half>(*arguments, queue);
}
