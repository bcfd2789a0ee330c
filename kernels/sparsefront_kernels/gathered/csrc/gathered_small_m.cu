// Y = activation(X · W^T + bias) + residual for a gathered weight and few rows of X (m <= 64); half,
// bfloat16 and float.
//
// Nearly all bytes read are the weight's, so the kernel is built around streaming it, which begins before the previous kernels have
// ended. It was packed in advance as the lanes of
// mma.m16n8k16 hold it: a chunk is a list of 16 inputs and, for every 16 outputs of a row tile, 512 bytes, 16 per lane.
// Each warp copies its own chunks in bulk into its own ring in shared memory, waits for no other warp, and gathers the kept inputs
// of X directly into the registers of the second operand, one slot ahead of the products. The assignment of list items and rows
// of X to places of a fragment is free, and is chosen so that a lane reads neighbors: with X
// feature-major a lane loads its (up to eight) rows of one input at once.
//
// Warps share the chunks of a row tile, and so do the blocks of a cluster; sums are added up in shared memory in a fixed
// order, so repeated runs give the same bits. See ../README.md.
#include "small_m_gather.cuh"

namespace {

// X with any strides → [K, columns] with contiguous rows, zeros from row m on; 32 inputs per block.
template <typename T>
__global__ void __launch_bounds__(256) pack_rows_kernel(const T* x, long long x_bytes, long long input_stride, long long row_stride, T* packed, int k, int m, int columns, int pdl) {
    __shared__ T tile[64][33];
    prefetch_x(x, x_bytes);
    if (pdl != PDL_OFF) {
        pdl_launch_dependents();
        pdl_wait();
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32;
    T elements[8];  // all loads are issued before the first is needed
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = warp + 8 * i;
        elements[i] = row < m && first + lane < k ? x[row * row_stride + (first + lane) * input_stride] : rounded<T>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) tile[warp + 8 * i][lane] = elements[i];
    __syncthreads();
    for (int at = threadIdx.x; at < 32 * columns; at += 256) {
        if (first + at / columns < k) packed[static_cast<long long>(first) * columns + at] = tile[at % columns][at / columns];
    }
}

template <typename Kernel, typename... Arguments>
cudaError_t launch(Kernel kernel, int blocks, int threads, int shared_bytes, int splits, bool early, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    if (splits > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
    }
    if (early && has_pdl()) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

constexpr int rounded_up(int bytes) { return (bytes + 127) / 128 * 128; }

// Launch parameters of a grid.
struct Shape {
    int k;
    int row_tiles, most_chunks;  // row tiles that keep any input
    bool shared;  // X is gathered into shared memory
    int fragments, warps;
};

int most_shared_bytes() {
    int device = 0, bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return bytes;
}

// A short X with few rows is copied whole: reading an input then takes 30 cycles, not 700.
template <typename T>
void copy_all_of_x(Problem& problem, int k, int offset) {
    const auto aligned = [](long long bytes) { return bytes % 16 == 0; };
    const bool by_input = problem.x_row_stride == 1 && problem.x_input_stride == problem.m * sizeof(T);  // X is [K, M]
    const bool by_row = problem.x_input_stride == sizeof(T) && aligned(problem.x_row_stride * sizeof(T));
    if (problem.m > 8 || !aligned(reinterpret_cast<long long>(problem.x)) || !(by_input || by_row)) return;
    const int copies = by_input ? 1 : problem.m;
    const long long bytes = static_cast<long long>(by_input ? problem.m : 1) * k * sizeof(T), pitch = by_input ? sizeof(T) : bytes + 16;
    if (!aligned(bytes) || offset + copies * (bytes + 16) > most_shared_bytes() - FIXED_BYTES || copies * bytes > MOST_X_BYTES) return;
    problem.x_copy = copies, problem.x_copy_bytes = bytes, problem.x_pitch = pitch, problem.x_offset = offset;
}

template <typename T, int FRAGMENTS, int COLUMN_BLOCKS>
cudaError_t launch_product(Problem problem, const Shape& shape, cudaStream_t stream) {
    const int list_bytes = rounded_up((shape.most_chunks + problem.splits - 1) / problem.splits * LIST_BYTES);
    const int owners = problem.width / (16 * FRAGMENTS);
    void (*kernel)(Problem) = gathered_small_m_kernel<T, FRAGMENTS, COLUMN_BLOCKS, false>;
    int warps = shape.warps, blocks = shape.row_tiles * owners, bytes = 0;
    if (shape.shared) {
        if constexpr (sizeof(T) == 4) {
            return cudaErrorInvalidValue;
        } else {
            kernel = gathered_small_m_shared_kernel<T, FRAGMENTS, COLUMN_BLOCKS>;
            if (owners > MOST_WARPS) return cudaErrorInvalidValue;
            warps = MOST_WARPS + GATHERERS, blocks = shape.row_tiles;
            const int warp_split_k = MOST_WARPS / owners;
            if (problem.stage_chunks < warp_split_k) problem.stage_chunks = warp_split_k;
            const int stage_bytes = problem.stage_chunks * (problem.width * 32 + CHUNK * 16 * COLUMN_BLOCKS);
            problem.region = rounded_up(max(problem.stages * stage_bytes, warp_split_k * problem.width * 33 * COLUMN_BLOCKS));
            bytes = problem.region + list_bytes;
        }
    } else {
        if (warps * 32 < 16 * FRAGMENTS) return cudaErrorInvalidValue;
        const int ring = problem.stages * UNIT_OF<T, FRAGMENTS, COLUMN_BLOCKS> * FRAGMENTS * FRAGMENT_BYTES<T>;
        problem.region = rounded_up(max(ring, FRAGMENTS * COLUMN_BLOCKS * BLOCK_SUMS * 4));
        bytes = warps * problem.region + list_bytes;
        if constexpr (COLUMN_BLOCKS == 1) {
            copy_all_of_x<T>(problem, shape.k, bytes);
            if (problem.x_copy > 0) {
                kernel = gathered_small_m_kernel<T, FRAGMENTS, COLUMN_BLOCKS, true>;
                bytes += rounded_up(problem.x_copy * (problem.x_copy_bytes + 16));
            }
        }
    }
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    // blocks of one grid and the next must fit together, and a change of the carve-out waits for an idle SM
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
    return launch(kernel, blocks * problem.splits, 32 * warps, bytes, problem.splits, problem.pdl != PDL_OFF, stream, problem);
}

template <typename T, int FRAGMENTS, int COLUMN_BLOCKS = 1>
cudaError_t launch_product_of(const Problem& problem, const Shape& shape, cudaStream_t stream) {
    if constexpr (FRAGMENTS * COLUMN_BLOCKS * sizeof(T) <= 64) {  // the sums fit into registers
        if (problem.m <= 8 * COLUMN_BLOCKS) return launch_product<T, FRAGMENTS, COLUMN_BLOCKS>(problem, shape, stream);
        if constexpr (COLUMN_BLOCKS < 8) return launch_product_of<T, FRAGMENTS, 2 * COLUMN_BLOCKS>(problem, shape, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_all(Problem problem, void* packed, const Shape& shape, cudaStream_t stream) {
    if (packed != nullptr) {
        const int columns = problem.m <= 8 ? 8 : problem.m <= 16 ? 16 : problem.m <= 32 ? 32 : 64;
        const cudaError_t error = launch(pack_rows_kernel<T>, (shape.k + 31) / 32, 256, 0, 1, problem.pdl != PDL_OFF, stream,
                                         static_cast<const T*>(problem.x), problem.x_bytes, static_cast<long long>(problem.x_input_stride / sizeof(T)),
                                         problem.x_row_stride, static_cast<T*>(packed), shape.k, problem.m, columns, problem.pdl);
        if (error != cudaSuccess) return error;
        problem.x = packed, problem.x_input_stride = columns * sizeof(T), problem.x_row_stride = 1;
        problem.x_bytes = 0;
    }
    switch (shape.fragments) {
        case 1: return launch_product_of<T, 1>(problem, shape, stream);
        case 2: return launch_product_of<T, 2>(problem, shape, stream);
        case 4: return launch_product_of<T, 4>(problem, shape, stream);
        case 8: return launch_product_of<T, 8>(problem, shape, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace

// Returns a cudaError_t. Strides are in elements. A lane reads the neighboring rows of an input at once from nine rows on
// (2, 4 or 8 elements for m <= 16, 32, 64), and where X is gathered into shared memory, eight: X must then have rows side by
// side, aligned to as many elements (at most 16 bytes), and m a multiple of that; otherwise `packed` is memory for
// k times 8, 16, 32 or 64 elements. The caller checks shapes, and that fragments * 16 divides the width of a row tile. Row tiles
// from `kept_row_tiles` on keep no input. Where pdl is not 0, no kernel before this one may have written the weight. x_bytes: size of
// the memory that X spans, 0 if that is much more than X holds.
extern "C" int sparsefront_gathered_small_m(const void* x, void* packed, const void* lists, const void* panels, const void* row_tiles,
                                           const void* outputs, const void* bias, const void* residual, void* y,
                                           long long x_input_stride, long long x_row_stride, long long residual_row_stride,
                                           long long residual_output_stride, long long y_row_stride, long long y_output_stride,
                                           long long x_bytes, long long chunks, int type, int bias_type, int activation, int m,
                                           int n, int k, int row_tile_count, int kept_row_tiles, int chunks_of_each, int most_chunks, int width, int shared,
                                           int fragments, int splits, int warps, int stages, int stage_chunks, int pdl,
                                           int prefetch_bytes, void* stream) {
    if (m < 1 || m > 64 || x_input_stride >= (1ll << 30) || stages < 2 || stages > MOST_STAGES || warps < 1 || warps > MOST_WARPS ||
        splits < 1 || splits > MOST_SPLITS || width > MOST_WIDTH || width % (16 * fragments) != 0)
        return cudaErrorInvalidValue;
    const Problem problem{x,
                          static_cast<unsigned>(x_input_stride * (type == 1 ? 4 : 2)),
                          x_row_stride,
                          x_bytes,
                          static_cast<const uint8_t*>(lists),
                          static_cast<const uint8_t*>(panels),
                          chunks,
                          static_cast<const int2*>(row_tiles),
                          chunks_of_each,
                          static_cast<const int*>(outputs),
                          width,
                          kept_row_tiles * width,
                          row_tile_count * width,
                          n,
                          m,
                          ((1u << 19) + m - 1) / m,
                          bias,
                          bias_type,
                          residual,
                          residual_row_stride,
                          residual_output_stride,
                          activation,
                          y,
                          y_row_stride,
                          y_output_stride,
                          splits,
                          stages,
                          0,
                          stage_chunks,
                          0,
                          0,
                          0,
                          0,
                          pdl,
                          prefetch_bytes};
    const Shape shape{k, kept_row_tiles, most_chunks, shared != 0, fragments, warps};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (type) {
        case 1: return launch_all<float>(problem, packed, shape, queue);
        case 2: return launch_all<__half>(problem, packed, shape, queue);
        case 3: return launch_all<__nv_bfloat16>(problem, packed, shape, queue);
        default: return cudaErrorInvalidValue;
    }
}
