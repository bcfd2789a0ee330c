// Y = X · W^T + bias for 1 or 2 of every 4 inputs or 3 of every 32, and up to 64 rows of X by tensor cores, on Hopper (sm_90a); half and
// bfloat16. How work is shared is as in ../../cuda/lane_kernel.cuh, weights and X come by bulk copies (chunk_ring.cuh); see ../README.md.
#include "../../cuda/lane_launch.cuh"
#include "chunk_ring.cuh"
#include "mma_fragments.cuh"

namespace {

using lanes::LANES;

template <typename T, typename Pattern, int ROWS>
__global__ void __launch_bounds__(lanes::MOST_THREADS, ROWS <= 16 ? 2 : 1) n_m_mma_kernel(const __grid_constant__ lanes::Problem problem) {
    using Part = lanes::Chunk<T, Pattern::BITS, 1>;
    using Ring = mma::ChunkRing<T, Part>;
    constexpr int INPUTS = Pattern::INPUTS;  // of a chunk
    extern __shared__ __align__(16) uint8_t shared[];  // slots of all warps; their barriers, and X's; rows of X, at last sums
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, warps = blockDim.x / LANES, shares = warps / problem.block_strips;
    const int slots = warps * problem.stages;
    uint8_t* const barriers = shared + slots * Ring::BYTES;
    uint8_t* const rows = barriers + (slots + mma::PIECES + 1) / 2 * 16;
    const uint32_t rows_there = shared_address(barriers) + 8 * slots;
    Ring ring(shared + warp * problem.stages * Ring::BYTES, shared_address(barriers) + 8 * warp * problem.stages, problem.stages, lane);
    if (threadIdx.x == 0) {
        for (int piece = 0; piece < mma::PIECES; ++piece) barrier_init(rows_there + 8 * piece, 1);
    }
    fence_barrier_init();

    const lanes::Share<T, Part> share(problem, warp);
    share.begin(problem, lane, shares);
    const int own_last = share.strip < problem.strips ? share.last : share.first;
    int at = share.first + share.of_strip;
    ring.begin(share, at, own_last, shares, lane);

    float sums[2][ROWS / 8][4] = {};
    uint32_t phase = 0;
    for (int segment = share.first; segment < share.last; segment += problem.segment, phase ^= 1) {
        const int end = min(segment + problem.segment, share.last), pitch = (end - segment) * INPUTS * 2 + mma::PADDING;
        if (segment > share.first) __syncthreads();  // all have multiplied by the rows that are there
        const bool in_bulk = mma::in_bulk(problem.inputs);
        if (in_bulk) {
            mma::bring_rows<T, INPUTS>(problem.inputs, ROWS, segment, end, rows, pitch, rows_there);
            mma::clear_beyond<T, INPUTS>(problem.inputs, ROWS, segment, end, rows, pitch);
        } else {
            mma::gather_rows<T>(problem.inputs, ROWS, segment * INPUTS, (end - segment) * INPUTS, rows, pitch);
        }
        __syncthreads();
        for (int piece = 0; piece < mma::PIECES; ++piece) {
            const int own_end = min(mma::piece_begin(segment, end, piece + 1), own_last);
            if (in_bulk) barrier_wait(rows_there + 8 * piece, phase);
            for (; at < own_end; at += shares) {
                Part chunk;
                ring.take(share, chunk, lane);
                const uint8_t* x = rows + lane / 4 * pitch + (at - segment) * INPUTS * 2 + lane % 4 * Pattern::LANE_BYTES;
                Pattern::template multiply<T, ROWS / 8>(sums, chunk, x, pitch);
            }
        }
    }
    if (problem.dependent_launch == streams::LATE) streams::let_next_grid_start();
    __syncthreads();
    float* target = reinterpret_cast<float*>(rows) + warp * ROWS * LANES;
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
    lanes::reduce_and_write<T, ROWS>(problem, reinterpret_cast<float*>(rows), share.first_strip * LANES, 0, share.rank);
}

// ROWS: the fewest that m may need.
template <typename T, int ROWS = 8>
cudaError_t launch_rows(const lanes::Problem& problem, const lanes::Arguments& given, cudaStream_t stream) {
    if constexpr (ROWS < 64) {
        if (given.rows > ROWS) return launch_rows<T, 2 * ROWS>(problem, given, stream);
    }
    if (given.rows != ROWS || given.m > ROWS || given.stages < 1) return cudaErrorInvalidValue;
    const bool of_four = given.group_size == 4 && (given.kept == 1 || given.kept == 2);
    if (!of_four && (given.group_size != 32 || given.kept != mma::ThreeOf32::SLOTS)) return cudaErrorInvalidValue;
    const auto kernel = !of_four          ? n_m_mma_kernel<T, mma::ThreeOf32, ROWS>
                        : given.kept == 1 ? n_m_mma_kernel<T, mma::OfFour<1>, ROWS>
                                          : n_m_mma_kernel<T, mma::OfFour<2>, ROWS>;
    return lanes::launch(kernel, problem, ROWS, given.shared_bytes, given.shares, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, and that `shared_bytes` hold the chunks, and the inputs of a segment or all sums. rows: 8, 16,
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
