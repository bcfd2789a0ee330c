// The kernel of column_norm.cuh for half and bfloat16 and any number of features up to 8192.
#include "column_norm.cuh"

namespace {

using column_norm::Arguments;

// 64 bytes of a row to a block, and 16 warps; a thread holds up to eight rows. The ring takes what shared memory then has left.
constexpr int COLUMNS = 32, THREADS = 512, ROWS = THREADS / (COLUMNS / column_norm::EIGHT), SLOTS = 24;

template <typename T, int CLUSTER, int VECTORS>
cudaError_t launch_divided(const Arguments& problem, cudaStream_t stream) {
    return problem.residual == nullptr
               ? column_norm::launch<column_norm::Shape<T, CLUSTER, COLUMNS, THREADS, VECTORS, SLOTS, 1, false>>(problem, stream)
               : column_norm::launch<column_norm::Shape<T, CLUSTER, COLUMNS, THREADS, VECTORS, SLOTS / 2, 1, true>>(problem, stream);
}

int rows_of_thread(int features, int cluster) {
    const int part = (features + cluster - 1) / cluster;
    return (part + ROWS - 1) / ROWS;
}

// Blocks of a cluster: as few as hold a column.
template <typename T, int CLUSTER>
cudaError_t launch_larger(const Arguments& problem, cudaStream_t stream) {
    const int rows = rows_of_thread(problem.d, CLUSTER);
    if (rows <= 6) return launch_divided<T, CLUSTER, 6>(problem, stream);
    if (rows <= 8) return launch_divided<T, CLUSTER, 8>(problem, stream);
    if constexpr (CLUSTER < 8) return launch_larger<T, 2 * CLUSTER>(problem, stream);
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_any(const Arguments& problem, cudaStream_t stream) {
    const int rows = rows_of_thread(problem.d, 1);
    if (rows <= 2) return launch_divided<T, 1, 2>(problem, stream);
    if (rows <= 4) return launch_divided<T, 1, 4>(problem, stream);
    return launch_larger<T, 1>(problem, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks that d is between 1 and 8192, m a positive multiple of 8, all matrices begin at a multiple
// of 16 bytes and rows are a multiple of 8 elements apart, and that there is a residual where there is x_bias or sums.
extern "C" int sparsefront_layer_norm_columns(const Arguments* arguments, void* stream) {
    if (arguments->d < 1 || arguments->m < 1 || arguments->m % column_norm::EIGHT != 0) return cudaErrorInvalidValue;
    const auto queue = static_cast<cudaStream_t>(stream);
    return arguments->is_bfloat16 ? launch_any<__nv_bfloat16>(*arguments, queue) : launch_any<__half>(*arguments, queue);
}
