// Y[N, M] = activation(W[N, K] · X[K, M] + bias[N]) + residual for a gathered weight of narrow tiles on CUDA cores,
// in float32 throughout, feature-major.
//
// A block of the grid computes 128 outputs times BLOCK_M columns. Every 8 of these outputs have a list of kept inputs of their
// own. A stage of the ring is a window of 64 inputs: the rows of X that some list of the block keeps, one bulk copy each, and for
// every list its weights with the places of their rows among those that were loaded. So a row comes once for all lists, and a
// list spends no product on a row that it does not keep. Four warps multiply, each 32 outputs x BLOCK_M columns, a thread 8
// outputs of one list x COLUMNS columns in registers: its lanes read up to four rows at once, 128 contiguous bytes of each.
// What is shared with the kernel for wide tiles: pipeline, sums and their way to Y (simt.cuh).
// Packed and unpacked loads with in-window indices: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU",
// 2025. See ../README.md.
#include "simt.cuh"

namespace {

constexpr int WIDTH = 128;  // outputs per CTA
constexpr int LISTS = 16;  // per CTA, 8 outputs each
constexpr int WINDOW_ROWS = 64;  // maximum rows of X per stage
constexpr int OCTET = 8;  // steps taken together; a step is one kept input of every list

struct IndexedProblem : Problem {
    const int2* starts;    // [stages + 1]: first row in `kept`, first step; contiguous per tile
    const uint8_t* places;  // per stage: number of octets in 16 bytes, then [octets, lists, 8]
    int most_steps;        // maximum over stages
};

template <int COLUMNS>
struct IndexedShape : Shape<WIDTH, 1, 8, COLUMNS> {
    static constexpr int X_BYTES = WINDOW_ROWS * IndexedShape::BLOCK_M * 4;
    static constexpr int ROW_BYTES = IndexedShape::BLOCK_M * 4;
    static constexpr int STEP_BYTES = WIDTH * 4 + LISTS;  // weights and row indices

    __host__ __device__ static constexpr int stage_bytes(int most_steps) { return X_BYTES + 16 + most_steps * STEP_BYTES; }
};

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}

__device__ __forceinline__ uint2 load_two_words(uint32_t address) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address));
    return words;
}

// Rows and steps of a stage; none past the last.
struct Stage {
    int row, step, rows, steps;

    __device__ __forceinline__ Stage(const IndexedProblem& problem, int first, int stage, int count) : row(0), step(0), rows(0), steps(0) {
        if (stage >= count) return;
        const int2 begin = problem.starts[first + stage], end = problem.starts[first + stage + 1];
        row = begin.x, step = begin.y, rows = end.x - begin.x, steps = end.y - begin.y;
    }
};

// In a stage: rows of X, then number of octets and places, then weights.
template <typename S>
__device__ __forceinline__ void consume(const IndexedProblem& problem, int work_tiles, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    __shared__ alignas(16) int all_outputs[WARPS][32];
    extern __shared__ __align__(128) float shared[];
    const Place<S> place;
    const int warp = threadIdx.x / 32 - WARPS, lane = threadIdx.x % 32;
    const bool signals = lane == 0;
    const int* outputs = all_outputs[warp];
    const int stage_bytes = S::stage_bytes(problem.most_steps);
    const uint32_t own_x = stages + 4 * place.column;
    const uint32_t own_places = stages + S::X_BYTES + 16 + OCTET * (warp * 4 + lane / S::LANES_ALONG_M);
    const uint32_t own_w = stages + S::X_BYTES + 16 + LISTS * problem.most_steps + 4 * place.output;
    const bool in_registers = problem.splits == 1 && problem.activation == NONE;
    Ring ring;
    for (int index = blockIdx.x / problem.splits; index < work_tiles; index += gridDim.x / problem.splits) {
        const WorkTile<S> work_tile(problem, index);
        const Range range(problem, work_tile.tile, 1);
        __syncwarp();
        if (lane < 8)  // outputs of this warp, for the epilogue
            copy_16_bytes(shared_address(outputs + 4 * lane),
                          problem.outputs + work_tile.tile * WIDTH + (place.output & ~31) + 4 * lane, 16);
        Sums<S> sums;
        Fragment<S> fragments[2];
        if (range.count > 0) {
            const int octets = (problem.starts[range.first + range.count].y - problem.starts[range.first].y) / OCTET;
            barrier_wait(full + 8 * ring.slot, ring.phase);
            const int first = ring.slot * stage_bytes;
            uint32_t x = own_x + first, w = own_w + first, places = own_places + first;
            int left = load_word(stages + S::X_BYTES + first);  // octets in this stage
            uint2 rows = load_two_words(places), following;  // row indices of the steps of an octet, one byte each
            const auto load = [&](Fragment<S>& fragment, int step) {
                const uint32_t row = (step < 4 ? rows.x : rows.y) >> 8 * (step % 4) & 0xff;
                fragment.load(w + step * WIDTH * 4, x + row * S::ROW_BYTES);
            };
            load(fragments[0], 0);
#pragma unroll 1
            for (int octet = 1; octet <= octets; ++octet) {
                const bool ends = --left == 0, more = ends && octet < octets;
                const Ring next = ring.next(problem.stages);
                const int at = (more ? next.slot : ring.slot) * stage_bytes;
#pragma unroll
                for (int i = 0; i < OCTET; ++i) {
                    if (i + 3 == OCTET && more) barrier_wait(full + 8 * next.slot, next.phase);
                    if (i + 1 < OCTET) {
                        load(fragments[(i + 1) % 2], i + 1);
                    } else {
                        x = ends ? own_x + at : x, w = ends ? own_w + at : w + OCTET * WIDTH * 4;
                        rows = following;
                        load(fragments[0], 0);
                    }
                    if (i + 2 == OCTET) {
                        places = ends ? own_places + at : places + LISTS * OCTET;
                        following = load_two_words(places);
                        left = ends ? load_word(stages + S::X_BYTES + at) : left;
                    }
                    sums.add_products(fragments[i % 2].w, fragments[i % 2].x);
                }
                __syncwarp();  // all lanes have read the stage, if it ends
                if (ends && signals) barrier_arrive(empty + 8 * ring.slot);
                ring = ends ? next : ring;
            }
        }
        wait_for_own_copies();
        __syncwarp();
        if (in_registers) {
            store_sums<S>(problem, place, work_tile, outputs, sums);
        } else {
            add_up_and_store<S>(problem, place, work_tile, outputs, shared, sums);
        }
    }
}

// Warps fill the stages in turn, as in gathered_simt.cu; a lane copies one or two rows.
template <typename S>
__device__ __forceinline__ void produce(const IndexedProblem& problem, int work_tiles, uint32_t stages, uint32_t full,
                                        uint32_t empty) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = min(WARPS, problem.stages);
    const int stage_bytes = S::stage_bytes(problem.most_steps);
    pdl_wait();
    Ring ring{warp, 0};
    int number = warp;  // of the stage within the work tile; other warps had those before it
    for (int index = blockIdx.x / problem.splits; index < work_tiles; index += gridDim.x / problem.splits) {
        const WorkTile<S> work_tile(problem, index);
        const Range range(problem, work_tile.tile, 1);
        const float* x = problem.x + work_tile.column;
        const uint32_t row_bytes = min(S::BLOCK_M, problem.m - work_tile.column) * 4;
        const auto input = [&](const Stage& stage, int row) { return row < stage.rows ? problem.kept[stage.row + row] : -1; };
        Stage now(problem, range.first, number, range.count);
        int low = input(now, lane), high = input(now, lane + 32);  // of this lane
        for (; number < range.count; number += warps) {
            const uint32_t target = stages + ring.slot * stage_bytes, ready = full + 8 * ring.slot;
            barrier_wait_idly(empty + 8 * ring.slot, ring.phase ^ 1);
            if (copies_bulk(lane)) {
                barrier_arrive_expect(ready, now.rows * row_bytes + 16 + now.steps * S::STEP_BYTES);
                copy_bulk(target + S::X_BYTES, problem.places + 16ll * (range.first + number + now.step), 16 + now.steps * LISTS,
                          ready, lane);
                copy_bulk(target + S::X_BYTES + 16 + problem.most_steps * LISTS,
                          problem.panels + static_cast<long long>(now.step) * WIDTH, now.steps * WIDTH * 4, ready, lane);
            }
            __syncwarp();
            if (low >= 0) copy_bulk(target + lane * S::ROW_BYTES, x + low * problem.x_stride, row_bytes, ready);
            if (high >= 0) copy_bulk(target + (lane + 32) * S::ROW_BYTES, x + high * problem.x_stride, row_bytes, ready);
            arrive_issued_by_warp(ready, lane);
            now = Stage(problem, range.first, number + warps, range.count);  // while this warp's next slot is still in use
            low = input(now, lane), high = input(now, lane + 32);
            ring.slot += warps;
            if (ring.slot >= problem.stages) ring.slot -= problem.stages, ring.phase ^= 1;
        }
        number -= range.count;
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::LEAST_BLOCKS) gathered_indexed_kernel(const __grid_constant__ IndexedProblem problem) {
    const int work_tiles = problem.tile_count * ((problem.m + S::BLOCK_M - 1) / S::BLOCK_M);
    run_warps<S>(
        problem.stages,
        [&](uint32_t stages, uint32_t full, uint32_t empty) { produce<S>(problem, work_tiles, stages, full, empty); },
        [&](uint32_t stages, uint32_t full, uint32_t empty) { consume<S>(problem, work_tiles, stages, full, empty); });
}

template <int COLUMNS>
cudaError_t launch(const IndexedProblem& problem, int num_sms, cudaStream_t stream) {
    using S = IndexedShape<COLUMNS>;
    return launch_kernel<S>(gathered_indexed_kernel<S>, problem, S::stage_bytes(problem.most_steps), num_sms, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, alignment (16 bytes) and that m is a multiple of 4, and most_steps of 4.
// Strides are in elements.
extern "C" int sparsefront_gathered_indexed(const void* x, const void* panels, const void* kept, const void* starts,
                                            const void* places, const void* tiles, const void* outputs, const void* bias,
                                            const void* residual, void* y, long long x_stride, long long y_stride,
                                            long long residual_stride, int most_steps, int bias_type, int activation, int m, int k,
                                            int tile_count, int columns, int stages, int splits, int num_sms, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || splits < 1 || splits > 8) return cudaErrorInvalidValue;
    const IndexedProblem problem{{static_cast<const float*>(x),
                                  static_cast<const float*>(panels),
                                  static_cast<const int*>(kept),
                                  static_cast<const int2*>(tiles),
                                  0,
                                  static_cast<const int*>(outputs),
                                  bias,
                                  static_cast<const float*>(residual),
                                  static_cast<float*>(y),
                                  x_stride,
                                  y_stride,
                                  residual_stride,
                                  bias_type,
                                  activation,
                                  m,
                                  k,
                                  tile_count,
                                  stages,
                                  splits},
                                 static_cast<const int2*>(starts),
                                 static_cast<const uint8_t*>(places),
                                 most_steps};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (columns) {
        case 16: return launch<16>(problem, num_sms, queue);
        case 8: return launch<8>(problem, num_sms, queue);
        default: return cudaErrorInvalidValue;
    }
}
