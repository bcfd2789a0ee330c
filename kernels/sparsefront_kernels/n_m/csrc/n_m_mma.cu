// Y = X · W^T + bias for 1 or 2 of every 4 inputs or 3 of every 32, and up to 64 rows of X by tensor cores, on Hopper (sm_90a); half and
// bfloat16. How work is shared is as in ../../cuda/thread_per_output_kernel.cuh, weights and X come by bulk copies (chunk_ring.cuh); see ../README.md.
#include "../../cuda/thread_per_output_kernel.cuh"
#include "chunk_ring.cuh"
#include "gathered_fragments.cuh"
#include "sparse_fragments.cuh"

namespace {

using thread_per_output::LANES;

template <int ROWS>
constexpr int MOST_THREADS = ROWS <= 16 ? 512 : 256;  // more sums take more registers

// Pattern: OfFour or ThreeOf32.
template <typename T, typename Pattern, int ROWS>
__global__ void __launch_bounds__(MOST_THREADS<ROWS>, 1) n_m_mma_kernel(const __grid_constant__ thread_per_output::Problem problem) {
    using Part = typename Pattern::Chunk;
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
        for (int piece = 0; piece < mma::PIECES; ++piece) barrier_init(rows_there + 8 * piece, Pattern::IN_SLOTS ? warps : 1);
    }
    fence_barrier_init();

    const thread_per_output::Share<T, Part> share(problem, warp);
    // a strip's first chunks, no more than arrive while the kernel before ends: all copies of X and the weight queue behind them
    constexpr int PREFETCHED = 32;  // chunks of a block
    const int of_warp = max(1, PREFETCHED / warps), prefetched = share.first + share.of_strip * of_warp;
    share.begin(problem, lane, prefetched, min(of_warp, share.last - prefetched));
    const int own_last = share.strip < problem.strips ? share.last : share.first;
    int at = share.first + share.of_strip;

    float sums[ROWS] = {};
    uint32_t phase = 0;
    for (int segment = share.first; segment < share.last; segment += problem.segment, phase ^= 1) {
        const int end = min(segment + problem.segment, share.last), pitch = (end - segment) * INPUTS * 2 + mma::PADDING;
        const bool in_pieces = mma::in_vectors(problem.inputs);
        __syncthreads();  // barriers are initialised; all have multiplied by the rows that are there
        if (!Pattern::IN_SLOTS && in_pieces) mma::bring_rows<T, INPUTS>(problem.inputs, segment, end, rows, pitch, rows_there);
        if (segment == share.first) ring.begin(share, at, own_last, shares, lane);
        if constexpr (Pattern::IN_SLOTS) {
            if (!in_pieces) Pattern::template bring_each<T, ROWS>(problem.inputs, segment, end, rows);
        } else {
            if (in_pieces) mma::clear_beyond<T, INPUTS>(problem.inputs, ROWS, segment, end, rows, pitch);
            else mma::gather_rows<T>(problem.inputs, ROWS, segment * INPUTS, (end - segment) * INPUTS, rows, pitch);
        }
        if (!Pattern::IN_SLOTS || !in_pieces) __syncthreads();
        // threads bring a piece before they multiply by the one before it, so that warps which wait for it leave the others to multiply
        for (int piece = Pattern::IN_SLOTS ? -1 : 0; piece < mma::PIECES; ++piece) {
            const int next = mma::piece_begin(segment, end, piece + 1);
            if constexpr (Pattern::IN_SLOTS) {
                if (in_pieces && piece + 1 < mma::PIECES) {
                    Pattern::template bring<T, ROWS>(problem.inputs, segment, next, mma::piece_begin(segment, end, piece + 2), rows);
                    __syncwarp();
                    if (lane == 0) barrier_arrive(rows_there + 8 * (piece + 1));
                }
                if (piece < 0) continue;
            }
            const int own_end = min(next, own_last);
            if (in_pieces) barrier_wait(rows_there + 8 * piece, phase);
            for (; at < own_end; at += shares) {
                Part chunk;
                ring.take(share, chunk, lane);
                const uint8_t* x = rows + (at - segment) * INPUTS * 2 * (Pattern::IN_SLOTS ? ROWS : 1);
                Pattern::template multiply<T>(sums, chunk, x, pitch, lane);
            }
        }
    }
    if (problem.dependent_launch == streams::LATE) streams::let_next_grid_start();
    __syncthreads();
    float* target = reinterpret_cast<float*>(rows) + warp * ROWS * LANES;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) target[Pattern::template row<ROWS>(i, lane) * LANES + Pattern::template output<ROWS>(i, lane)] = sums[i];
    __syncthreads();
    thread_per_output::reduce_and_write<T, ROWS>(problem, reinterpret_cast<float*>(rows), share.first_strip * LANES, 0, share.rank);
}

// ROWS: the fewest that m may need.
template <typename T, int ROWS = 8>
cudaError_t launch_rows(const thread_per_output::Problem& problem, const thread_per_output::Arguments& given, cudaStream_t stream) {
    if constexpr (ROWS < 64) {
        if (given.rows > ROWS) return launch_rows<T, 2 * ROWS>(problem, given, stream);
    }
    if (given.rows != ROWS || given.m > ROWS || given.stages < 1) return cudaErrorInvalidValue;
    const auto with = [&](auto kernel) {
        return thread_per_output::launch(kernel, problem, ROWS, given.shared_bytes, given.shares, stream, MOST_THREADS<ROWS>);
    };
    if (given.group_size == 4 && given.kept == 1) return with(n_m_mma_kernel<T, mma::OfFour<1>, ROWS>);
    if (given.group_size == 4 && given.kept == 2) return with(n_m_mma_kernel<T, mma::OfFour<2>, ROWS>);
    if constexpr (ROWS >= 16) {
        if (given.group_size == mma::ThreeOf32::GROUP) return with(n_m_mma_kernel<T, mma::ThreeOf32, ROWS>);
    }
    return cudaErrorInvalidValue;
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, and that `shared_bytes` hold the chunks, and the inputs of a segment or all sums. rows: 8 (not
// of groups of 32), 16, 32 or 64, at least m.
extern "C" int sparsefront_n_m_mma(const thread_per_output::Arguments* arguments, void* stream) {
    const thread_per_output::Problem problem = thread_per_output::problem_of(*arguments);
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (arguments->type) {
        case 2: return launch_rows<__half>(problem, *arguments, queue);
        case 3: return launch_rows<__nv_bfloat16>(problem, *arguments, queue);
        default: return cudaErrorInvalidValue;
    }
}
