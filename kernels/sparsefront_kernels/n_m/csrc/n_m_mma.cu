// Y = X · W^T + bias for n of every 4 inputs (n = 1, 2) and up to 64 rows of X by tensor cores, on Hopper (sm_90a); half and
// bfloat16. How a weight is streamed and how work is shared is as in ../../cuda/lane_kernel.cuh; see ../README.md.
#include "../../cuda/lane_launch.cuh"
#include "mma_fragments.cuh"

namespace {

using lanes::CHUNK, lanes::LANES;

// Inputs [first, first + count) of ROWS rows of X, a row after the other, `pitch` bytes apart; zeros beyond m and k.
template <typename T, int ROWS>
__device__ __forceinline__ void stage_rows(const lanes::Inputs& inputs, int first_row, int first, int count, uint8_t* target, int pitch) {
    const T* x = static_cast<const T*>(inputs.x);
    if (inputs.vectors && inputs.k % 8 == 0) {
        const int vectors = count / 8;
#pragma unroll 4
        for (int at = threadIdx.x; at < ROWS * vectors; at += blockDim.x) {
            const int row = at / vectors, input = at % vectors * 8;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (first_row + row < inputs.m && first + input < inputs.k)
                v = *reinterpret_cast<const uint4*>(x + (first_row + row) * inputs.row_stride + first + input);
            *reinterpret_cast<uint4*>(target + row * pitch + input * 2) = v;
        }
        return;
    }
#pragma unroll 4
    for (int at = threadIdx.x; at < ROWS * count; at += blockDim.x) {
        const int row = at / count, input = at % count;
        T v = numbers::rounded<T>(0.0f);
        if (first_row + row < inputs.m && first + input < inputs.k) {
            const int from = inputs.order == nullptr ? first + input : inputs.order[first + input];
            v = x[(first_row + row) * inputs.row_stride + from * inputs.input_stride];
        }
        *reinterpret_cast<T*>(target + row * pitch + input * 2) = v;
    }
}

template <typename T, int KEPT, int ROWS>
__global__ void __launch_bounds__(lanes::MOST_THREADS, ROWS <= 16 ? 2 : 1) n_m_mma_kernel(const __grid_constant__ lanes::Problem problem) {
    using Part = lanes::Chunk<T, 2, 1>;
    constexpr int INPUTS = CHUNK / KEPT * mma::GROUP;  // of a chunk
    extern __shared__ __align__(16) uint8_t shared[];
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, shares = blockDim.x / LANES / problem.block_strips;
    const lanes::Share<T, Part> share(problem, warp);
    share.begin(problem, lane, shares);

    float sums[2][ROWS / 8][4] = {};
    for (int segment = share.first; segment < share.last; segment += problem.segment) {
        const int end = min(segment + problem.segment, share.last), own_end = share.strip < problem.strips ? end : segment;
        const int pitch = (end - segment) * INPUTS * 2 + mma::PADDING;
        int at = segment + share.of_strip;
        Part current, next;
        if (at < own_end) share.load(current, at, lane);  // while X is brought
        if (segment > share.first) __syncthreads();
        stage_rows<T, ROWS>(problem.inputs, 0, segment * INPUTS, (end - segment) * INPUTS, shared, pitch);
        __syncthreads();
        for (; at < own_end; at += shares) {
            if (at + shares < own_end) share.load(next, at + shares, lane);
            const uint8_t* x = shared + lane / 4 * pitch + (at - segment) * INPUTS * 2 + lane % 4 * 32;
            mma::multiply<T, KEPT, ROWS / 8>(sums, current, x, pitch);
            current = next;
        }
    }
    if (problem.dependent_launch == streams::LATE) streams::let_next_grid_start();
    __syncthreads();
    float* target = reinterpret_cast<float*>(shared) + warp * ROWS * LANES;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int block = 0; block < ROWS / 8; ++block) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                target[(block * 8 + lane % 4 * 2 + i % 2) * LANES + half * 16 + i / 2 * 8 + lane / 4] = sums[half][block][i];
        }
    }
    __syncthreads();
    lanes::reduce_and_write<T, ROWS>(problem, reinterpret_cast<float*>(shared), share.first_strip * LANES, 0, share.rank);
}

// ROWS: the fewest that m may need.
template <typename T, int ROWS = 8>
cudaError_t launch_rows(const lanes::Problem& problem, const lanes::Arguments& given, cudaStream_t stream) {
    if constexpr (ROWS < 64) {
        if (given.rows > ROWS) return launch_rows<T, 2 * ROWS>(problem, given, stream);
    }
    if (given.rows != ROWS || given.m > ROWS || given.kept < 1 || given.kept > 2) return cudaErrorInvalidValue;
    const auto kernel = given.kept == 1 ? n_m_mma_kernel<T, 1, ROWS> : n_m_mma_kernel<T, 2, ROWS>;
    return lanes::launch(kernel, problem, ROWS, given.shared_bytes, given.shares, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, and that `shared_bytes` hold the inputs of a segment and all sums. rows: 8, 16,
// 32 or 64, at least m.
extern "C" int sparsefront_n_m_mma(const lanes::Arguments* arguments, void* stream) {
    const lanes::Problem problem = lanes::problem_of(*arguments);
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (arguments->type) {
        case 2: return launch_rows<__half>(problem, *arguments, queue);
        case 3: return launch_rows<__nv_bfloat16>(problem, *arguments, queue);
        default: return cudaErrorInvalidValue;
    }
}
