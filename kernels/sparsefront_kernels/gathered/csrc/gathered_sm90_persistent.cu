// Y[N, M] = activation(W[N, K] · X[K, M] + bias) + residual for a gathered weight on Hopper's tensor cores (sm_90a): work tiles of
// 128 outputs x 64 to 256 columns.
//
// A CTA processes a list of tiles computed on the host, which balances the CTAs for lists of kept inputs of any lengths. Either the last
// tiles are narrower (../sm90_schedule.py), or several CTAs share the k-blocks of a tile (../sm90_sharing.py): each stores partial sums,
// and a second kernel adds them in a fixed order. Four or eight producer warps gather X and load weights into pipeline stages; two
// consumer warpgroups multiply and store Y. See ../README.md.

#include <algorithm>
#include <iterator>

#include "../../cuda/epilogue.cuh"
#include "../../cuda/rounded_epilogue.cuh"
#include "../../cuda/wgmma.cuh"
#include "../../cuda/work_tile.cuh"
#include "mma_tiles.cuh"

namespace {

constexpr int QUARTER = 64;  // columns stored together

// A CTA, by the columns of its widest work tile.
template <int WIDEST>
struct Block {
    static constexpr int X_BYTES = WIDEST * ROW_BYTES;
    static constexpr int STAGE_BYTES = X_BYTES + 2 * PANEL_BYTES;
    static constexpr int STAGES = WIDEST == 256 ? 4 : 6;
    // Groups of producer warps fill the stages in turn: issuing copies takes as long as the copies, so several stages are filled
    // in parallel.
    static constexpr int PRODUCER_GROUPS = WIDEST == 256 ? 2 : 4, GROUP_WARPS = 2;
    static constexpr int PRODUCERS = 32 * PRODUCER_GROUPS * GROUP_WARPS, THREADS = CONSUMERS + PRODUCERS;
    // Size of the tile's partial sums, if its k-blocks are shared.
    static constexpr int PARTIAL_QUADS = WIDEST * 2 * HALF / 4;
};

struct Problem {
    const void* x;           // [K, m], rows `x_stride` bytes apart
    const uint8_t* panels;   // as in gathered_sm90_cluster.cu; or halved, see cuda/wgmma.cuh
    const int* k_blocks;     // likewise; a half then uses all MMA tiles of a k-block or none
    const int4* work;        // as read by WorkTile; for a part of a tile's k-blocks the first word is the index of its partial sums
    const int* work_begin;   // [CTAs + 1]: first tile of each CTA
    float4* partials;        // [parts of tiles, PARTIAL_QUADS]: sums in the consumers' accumulator layout
    Epilogue epilogue;
    unsigned x_stride;
    int m;
};

// Epilogue from accumulators: Y = activation(rounded sums + bias) + residual, a quarter of the tile's columns at a time.
// Feature-major: a lane stores eight columns of an output after an exchange within its quad.
template <typename T>
struct FeatureMajor {
    template <int WIDTH>
    __device__ __forceinline__ static void store(const Epilogue& epilogue, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any) {
        uint4 residual[2][4];  // of a quarter, and of the next, whose loads are in flight
        load_residual<0>(epilogue, tile, outputs, residual[0]);
        store_quarter<0, WIDTH>(epilogue, tile, acc, bias, outputs, any, residual);
    }

    template <int Q>
    __device__ __forceinline__ static void load_residual(const Epilogue& epilogue, const WorkTile& tile, const int (&outputs)[2],
                                                         uint4 (&residual)[4]) {
        if (epilogue.residual == nullptr) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = tile.column + Q * QUARTER + i / 2 * 32 + threadIdx.x % 4 * 8, output = outputs[i % 2];
            residual[i] = make_uint4(0, 0, 0, 0);
            if (output >= 0 && at < epilogue.m)
                residual[i] = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                              output * epilogue.residual_stride + at);
        }
    }

    template <int Q, int WIDTH>
    __device__ __forceinline__ static void store_quarter(const Epilogue& epilogue, const WorkTile& tile,
                                                         const float (&acc)[WIDTH / 2], const float (&bias)[2],
                                                         const int (&outputs)[2], bool any, uint4 (&residual)[2][4]) {
        if constexpr ((Q + 1) * QUARTER < WIDTH) load_residual<Q + 1>(epilogue, tile, outputs, residual[(Q + 1) % 2]);
        const Quarter<T> quarter(acc + Q * 32, bias, any, epilogue);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = tile.column + Q * QUARTER + i / 2 * 32 + threadIdx.x % 4 * 8, output = outputs[i % 2];
            uint32_t v[4] = {quarter.v[i * 4], quarter.v[i * 4 + 1], quarter.v[i * 4 + 2], quarter.v[i * 4 + 3]};
            transpose_in_quad(v, threadIdx.x % 32);
            if (epilogue.residual != nullptr) {
                const uint4& more = residual[Q % 2][i];
                v[0] = sum_of_two<T>(v[0], more.x), v[1] = sum_of_two<T>(v[1], more.y);
                v[2] = sum_of_two<T>(v[2], more.z), v[3] = sum_of_two<T>(v[3], more.w);
            }
            uint4* y = reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + output * epilogue.y_stride + at);
            if (output >= 0 && at < epilogue.m) __stcs(y, make_uint4(v[0], v[1], v[2], v[3]));
        }
        if constexpr ((Q + 1) * QUARTER < WIDTH)
            store_quarter<Q + 1, WIDTH>(epilogue, tile, acc, bias, outputs, any, residual);
    }
};

// Row-major, if a tile's outputs come in runs of eight neighbors: transposes 8 x 8 blocks in registers.
template <typename T>
struct RowMajor {
    template <int WIDTH>
    __device__ __forceinline__ static void store(const Epilogue& epilogue, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any) {
#pragma unroll
        for (int q = 0; q < WIDTH / QUARTER; ++q)
            store_transposed(epilogue, Quarter<T>(acc + q * 32, bias, any, epilogue), outputs,
                             tile.column + q * QUARTER);
    }

    // A lane stores eight neighboring outputs of one row of Y; two lanes fill a sector.
    __device__ __forceinline__ static void store_transposed(const Epilogue& epilogue, const Quarter<T>& quarter,
                                                            const int (&outputs)[2], int column) {
        const int lane = threadIdx.x % 32;
        const int runs[2] = {__shfl_sync(~0u, outputs[0], 0), __shfl_sync(~0u, outputs[1], 0)};
        const int first = lane % 2 ? runs[1] : runs[0];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 columns
            const uint32_t* of_columns = quarter.v + i / 2 * 8 + i % 2 * 2;
            uint32_t v[4] = {transposed_block(of_columns[0]), transposed_block(of_columns[4]), transposed_block(of_columns[1]),
                             transposed_block(of_columns[5])};
            transpose_in_quad(v, lane);
            const long long row = column + (2 * i + lane % 4 / 2) * 8 + lane / 4;
            if (first < 0 || row >= epilogue.m) continue;
            add_residual_run(v, epilogue, row, first);
            __stcs(reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + row * epilogue.y_stride + first),
                   make_uint4(v[0], v[1], v[2], v[3]));
        }
    }

    __device__ __forceinline__ static void add_residual_run(uint32_t (&v)[4], const Epilogue& epilogue, long long row, int first) {
        if (epilogue.residual == nullptr) return;
        const uint4 more = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                           row * epilogue.residual_stride + first);
        v[0] = sum_of_two<T>(v[0], more.x), v[1] = sum_of_two<T>(v[1], more.y);
        v[2] = sum_of_two<T>(v[2], more.z), v[3] = sum_of_two<T>(v[3], more.w);
    }
};

// The pipeline stages and their barriers as seen by a consumer warpgroup.
struct Stages {
    uint32_t full, empty, slot_uses;
    uint32_t first_x, first_w;  // lower words of descriptors
    uint32_t half;
    bool signals;
    Ring ring;
};

// acc (+)= the products of a stage with a panel that holds two of every four inputs.
template <typename T, int WIDTH>
__device__ __forceinline__ void multiply_halved(float (&acc)[WIDTH / 2], uint32_t panel, uint32_t x, int add) {
    const uint32_t places = load_word(panel + HALVED_VALUE_BYTES + threadIdx.x % 128 * 4);
    wgmma_fence();
    sparse_wgmma<T, WIDTH, 0, MN_MAJOR>(acc, k_major_descriptor<64>(panel), operand_descriptor(x), places, add);
    sparse_wgmma<T, WIDTH, 1, MN_MAJOR>(acc, k_major_descriptor<64>(panel + 32), operand_descriptor(x + 2 * (MMA_TILE_BYTES >> 4)),
                                        places, 1);
    wgmma_commit();
}

// Stores the partial sums of some of a tile's k-blocks, for `add_up_parts`; zeros if there were no products.
template <int WIDTH>
__device__ __forceinline__ void store_partial(float4* partial, const float (&acc)[WIDTH / 2], bool any) {
#pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i) {
        const float4 v = make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]);
        partial[i * CONSUMERS + threadIdx.x] = any ? v : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// Accumulates all k-blocks of a work tile and stores it.
template <typename T, typename Y, Weights WEIGHTS, int WIDEST, int WIDTH>
__device__ __forceinline__ void compute(const Problem& problem, Stages& s, const WorkTile& tile, float (&sums)[WIDEST / 2],
                                        const int (&outputs)[2], const uint32_t (&bias)[2]) {
    constexpr int STAGES = Block<WIDEST>::STAGES, STAGE_BYTES = Block<WIDEST>::STAGE_BYTES;
    auto& acc = reinterpret_cast<float(&)[WIDTH / 2]>(sums);
    int add = 0, previous = -1;
    for (int k_block = 0; k_block < tile.k_blocks; ++k_block) {
        barrier_wait(s.full + 8 * s.ring.slot, s.ring.phase);
        const uint32_t uses = warp_uniform(load_word(s.slot_uses + 4 * s.ring.slot));
        fence_for_tensor_cores();  // the rows of X were written by threads
        const uint32_t use = (uses >> (4 * s.half)) & 15;
        const uint32_t x = s.first_x + s.ring.slot * (STAGE_BYTES >> 4), w = s.first_w + s.ring.slot * (STAGE_BYTES >> 4);
        if (use == 15) {
            if constexpr (WEIGHTS == Weights::HALVED) {
                multiply_halved<T, WIDTH>(acc, w << 4, x, add);
            } else {
                multiply<T, WIDTH, 4>(acc, w, x, use, add);
            }
            wgmma_wait<1>();  // the previous stage has been read
        } else {
            if constexpr (WEIGHTS == Weights::ALL) {
                switch (__popc(use)) {
                    case 3: multiply<T, WIDTH, 3>(acc, w, x, use, add); break;
                    case 2: multiply<T, WIDTH, 2>(acc, w, x, use, add); break;
                    case 1: multiply<T, WIDTH, 1>(acc, w, x, use, add); break;
                }
            }
            wgmma_wait<0>();  // halves keep different inputs, so loads are the bottleneck: release the stage at once
        }
        add |= use != 0;
        __syncwarp();  // all lanes have finished their own reads of the stage
        if (previous >= 0 && s.signals) barrier_arrive(s.empty + 8 * previous);
        previous = s.ring.slot;
        if (use != 15) {
            if (s.signals) barrier_arrive(s.empty + 8 * previous);
            previous = -1;
        }
        s.ring.advance(STAGES);
    }
    wgmma_wait<0>();
    fence_sums(acc);
    if (previous >= 0 && s.signals) barrier_arrive(s.empty + 8 * previous);
    if (tile.is_part) {
        store_partial<WIDTH>(problem.partials + static_cast<int64_t>(tile.cta_tile) * Block<WIDEST>::PARTIAL_QUADS, acc, add);
        return;
    }
    const float wide[2] = {bias_of(problem.epilogue, bias[0]), bias_of(problem.epilogue, bias[1])};
    Y::template store<WIDTH>(problem.epilogue, tile, acc, wide, outputs, add);
}

template <typename T, typename Y, Weights WEIGHTS, int WIDEST>
__device__ __forceinline__ void consume(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                        uint32_t slot_uses) {
    Stages s{full, empty, slot_uses};
    s.half = warp_uniform(threadIdx.x / 128), s.signals = threadIdx.x % 32 == 0;
    s.first_x = operand_place(stages, PANEL_BYTES), s.first_w = operand_place(stages + Block<WIDEST>::X_BYTES + s.half * PANEL_BYTES, 0);
    const int4* next = problem.work + __ldg(problem.work_begin + blockIdx.x);
    const int4* const end = problem.work + __ldg(problem.work_begin + blockIdx.x + 1);
    const int first_output = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // of this thread, within the CTA tile
    const auto load_outputs = [&](const int4& of, int (&outputs)[2]) {
        const int cta_tile = of.w < 0 ? 0 : of.x;  // a part of a tile stores no outputs
#pragma unroll
        for (int p = 0; p < 2; ++p)
            outputs[p] = load_early(problem.epilogue.outputs + cta_tile * 2 * HALF + first_output + p * 8);
    };
    float acc[WIDEST / 2];
    // read ahead for the next tiles: position, then outputs, then bias
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(next);
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    pdl_wait();  // tables were complete before the launch; everything else may come from running kernels
    pdl_launch_dependents();
    int outputs[2], next_outputs[2];
    load_outputs(ahead[0], next_outputs);
    for (; next < end; ++next) {
        const WorkTile tile(ahead[0]);
        outputs[0] = next_outputs[0], outputs[1] = next_outputs[1];
        ahead[0] = ahead[1];
        load_outputs(ahead[0], next_outputs);
        if (next + 2 < end) ahead[1] = load_early(next + 2);
        const uint32_t bias[2] = {load_bias(problem.epilogue, outputs[0]), load_bias(problem.epilogue, outputs[1])};
        if constexpr (WIDEST == 256) {
            if (tile.width == 256) {
                compute<T, Y, WEIGHTS, WIDEST, 256>(problem, s, tile, acc, outputs, bias);
                continue;
            }
            if (tile.width == 192) {
                compute<T, Y, WEIGHTS, WIDEST, 192>(problem, s, tile, acc, outputs, bias);
                continue;
            }
        }
        if (tile.width == 128) {
            compute<T, Y, WEIGHTS, WIDEST, 128>(problem, s, tile, acc, outputs, bias);
        } else {
            compute<T, Y, WEIGHTS, WIDEST, 64>(problem, s, tile, acc, outputs, bias);
        }
    }
}

// Second kernel of a launch with shared tiles: adds the partial sums of a tile and stores Y.
constexpr int HALF_THREADS = CONSUMERS / 2;  // threads that hold the sums of a half

struct SharedTiles {
    const int4* tiles;       // [count]: CTA tile, first part, number of parts, column and width as in WorkTile
    const float4* partials;  // see Problem
    Epilogue epilogue;
    int count;
};

// A CTA adds 64 columns of a half tile, part after part.
template <typename T, typename Y, int WIDEST>
__global__ void __launch_bounds__(HALF_THREADS) add_up_parts(const __grid_constant__ SharedTiles shared) {
    constexpr int QUARTERS = WIDEST / QUARTER, QUADS = QUARTER / 8;
    const int half = blockIdx.x % 2, quarter = blockIdx.x / 2 % QUARTERS;
    const int4 of_tile = shared.tiles[blockIdx.x / 2 / QUARTERS];
    WorkTile tile(of_tile);
    const int thread = half * HALF_THREADS + threadIdx.x, first_output = thread / 32 * 16 + threadIdx.x % 32 / 4;
    pdl_launch_dependents();
    pdl_wait();
    if (quarter * QUARTER >= tile.width) return;
    int outputs[2];
    float bias[2];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        outputs[p] = shared.epilogue.outputs[tile.cta_tile * 2 * HALF + first_output + p * 8];
        bias[p] = bias_of(shared.epilogue, load_bias(shared.epilogue, outputs[p]));
    }
    const float4* partial = shared.partials + static_cast<int64_t>(of_tile.y) * Block<WIDEST>::PARTIAL_QUADS +
                            quarter * QUADS * CONSUMERS + thread;
    float sums[QUARTER / 2]{};
    for (int part = 0; part < of_tile.z; ++part, partial += Block<WIDEST>::PARTIAL_QUADS) {
        float4 v[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; ++i) v[i] = __ldcs(partial + i * CONSUMERS);
#pragma unroll
        for (int i = 0; i < QUADS; ++i)
            sums[i * 4] += v[i].x, sums[i * 4 + 1] += v[i].y, sums[i * 4 + 2] += v[i].z, sums[i * 4 + 3] += v[i].w;
    }
    tile.column += quarter * QUARTER;
    Y::template store<QUARTER>(shared.epilogue, tile, sums, bias, outputs, true);
}

// Iterates over the k-blocks of all work tiles of this CTA, several at a time. Reads the next tile ahead.
struct Cursor {
    const int4 *next, *end;
    int4 ahead;
    int left = 0, k_block = 0, column = 0, width = 0;
    bool ended = false;

    // Starts at k-block number `skip` of the CTA's work.
    __device__ __forceinline__ Cursor(const Problem& problem, int skip)
        : next(problem.work + __ldg(problem.work_begin + blockIdx.x)),
          end(problem.work + __ldg(problem.work_begin + blockIdx.x + 1)) {
        read_ahead();
        advance(skip);
    }

    __device__ __forceinline__ void read_ahead() {
        if (next < end) ahead = load_early(next);
    }

    __device__ __forceinline__ void advance(int k_blocks) {
        while (k_blocks >= left) {
            k_blocks -= left;
            ended = next >= end;
            if (ended) return;
            const WorkTile tile(ahead);
            k_block = tile.first, left = tile.k_blocks, column = tile.column, width = tile.width;
            ++next;
            read_ahead();
        }
        k_block += k_blocks, left -= k_blocks;
    }
};

// Producer warps. A k-block's list of rows goes through shared memory too, copied early enough to have landed when needed.
template <int WIDEST, Weights WEIGHTS>
struct Producer {
    using B = Block<WIDEST>;
    static constexpr int STAGES = B::STAGES, PRODUCER_GROUPS = B::PRODUCER_GROUPS, GROUP_WARPS = B::GROUP_WARPS;
    static constexpr bool HALVED = WEIGHTS == Weights::HALVED;
    static constexpr int UNIT_BYTES = HALVED ? HALVED_PANEL_BYTES : MMA_TILE_BYTES;  // in which weights are counted
    static constexpr int WARP_ROWS = STAGE_ROWS / GROUP_WARPS;
    static constexpr int LIST_WORDS = WARP_ROWS + K_BLOCK_WORDS - STAGE_ROWS;
    static constexpr int LISTS = (STAGES + PRODUCER_GROUPS - 1) / PRODUCER_GROUPS + 1;  // per warp
    using Lists = int[PRODUCER_GROUPS * GROUP_WARPS * LISTS][LIST_WORDS];

    // How a warp's lanes share its rows of a k-block: 16 bytes each, one row at a time, or two or four where tiles are narrow.
    struct Lanes {
        int chunk, row, atoms;  // the lane's place in a row; its first row; how many eights of rows it loads
        bool loads;
        uint32_t offsets[8];    // a row's place among eight decides its swizzle

        __device__ __forceinline__ void find(int width, int first_row) {
            const int lane = threadIdx.x % 32, at_once = width <= 64 ? 4 : width <= 128 ? 2 : 1, chunks = 32 / at_once;
            chunk = lane % chunks, row = lane / chunks * (WARP_ROWS / at_once), atoms = WARP_ROWS / at_once / 8;
            loads = chunk * 8 < width;
#pragma unroll
            for (int i = 0; i < 8; ++i)
                offsets[i] = chunk / 8 * PANEL_BYTES + (first_row + row + i) * ROW_BYTES + ((chunk % 8) ^ i) * 16;
        }
    };

    // This lane's part of the rows of a k-block.
    template <int ATOMS>
    __device__ __forceinline__ static void load_rows(const Lanes& lanes, bool loads, const char* x, uint32_t stride, uint32_t base,
                                                     const int* list) {
        const uint32_t wanted = loads ? 16 : 0;
#pragma unroll
        for (int atom = 0; atom < ATOMS; ++atom) {
            int rows[8];
            *reinterpret_cast<int4*>(rows) = *reinterpret_cast<const int4*>(list + lanes.row + atom * 8);
            *reinterpret_cast<int4*>(rows + 4) = *reinterpret_cast<const int4*>(list + lanes.row + atom * 8 + 4);
#pragma unroll
            for (int i = 0; i < 8; ++i)  // where the row is -1, nothing is read and zeros are written
                copy_16_bytes(base + lanes.offsets[i] + atom * 8 * ROW_BYTES, row_address(x, rows[i], stride),
                              rows[i] >= 0 ? wanted : 0);
        }
    }

    __device__ __forceinline__ static void run(const Problem& problem, uint32_t stages, uint32_t full, uint32_t empty,
                                               uint32_t slot_uses, Lists& all_lists) {
        const int lane = threadIdx.x % 32, warp = static_cast<int>(warp_uniform(threadIdx.x / 32)) - CONSUMERS / 32;
        const int producer_group = warp / GROUP_WARPS, first_row = warp % GROUP_WARPS * WARP_ROWS;
        const bool leads = warp % GROUP_WARPS == 0 && lane == 0;
        int(*lists)[LIST_WORDS] = all_lists + warp * LISTS;
        const int word = lane < WARP_ROWS / 4 ? first_row + lane * 4 : STAGE_ROWS;
        const uint32_t word_target = shared_address(lists[0] + min(lane * 4, WARP_ROWS));
        const auto fetch_list = [&](int turn, int k_block) {
            if (lane <= WARP_ROWS / 4)
                copy_16_bytes(word_target + turn * LIST_WORDS * 4, problem.k_blocks + static_cast<int64_t>(k_block) * K_BLOCK_WORDS + word,
                              16);
        };
        Cursor cursor(problem, producer_group), ahead = cursor;
        for (int turn = 0; turn < LISTS && !ahead.ended; ++turn, ahead.advance(PRODUCER_GROUPS))
            if (lane < (K_BLOCK_WORDS + 31) / 32)
                prefetch_line(problem.k_blocks + static_cast<int64_t>(ahead.k_block) * K_BLOCK_WORDS + lane * 32);
        ahead = cursor;
        pdl_wait();  // tables were complete before the launch; everything else may come from running kernels
        for (int turn = 0; turn < LISTS && !ahead.ended; ++turn, ahead.advance(PRODUCER_GROUPS)) fetch_list(turn, ahead.k_block);
        wait_for_own_copies();
        __syncwarp();

        const uint32_t stride = kept(problem.x_stride);
        Lanes lanes;
        int slot = producer_group, turn = 0, width = 0;
        uint32_t phase = 0;
        for (; !cursor.ended; cursor.advance(PRODUCER_GROUPS)) {
            while (slot >= STAGES) slot -= STAGES, phase ^= 1;
            if (width != cursor.width) lanes.find(width = cursor.width, first_row);
            const int column = cursor.column + lanes.chunk * 8;
            const bool loads = lanes.loads && column < problem.m;  // what lies past m reaches no column of Y before it
            const char* x = kept(static_cast<const char*>(problem.x) + (loads ? column : 0) * 2);
            const uint32_t base = stages + slot * B::STAGE_BYTES, ready = full + 8 * slot;
            const int* list = lists[turn];
            barrier_wait(empty + 8 * slot, phase ^ 1);  // and the list has landed
            const int4 use = *reinterpret_cast<const int4*>(list + WARP_ROWS);
            switch (lanes.atoms) {
                case 4: load_rows<4>(lanes, loads, x, stride, base, list); break;
                case 2: load_rows<2>(lanes, loads, x, stride, base, list); break;
                default: load_rows<1>(lanes, loads, x, stride, base, list); break;
            }
            if (leads) {
                const uint32_t units_0 = HALVED ? (use.x & 15) != 0 : __popc(use.x & 15);
                const uint32_t units_1 = HALVED ? (use.x & 240) != 0 : __popc(use.x & 240);
                const uint32_t bytes_0 = units_0 * UNIT_BYTES, bytes_1 = units_1 * UNIT_BYTES;
                store_word(slot_uses + 4 * slot, use.x);
                barrier_arrive_expect(ready, bytes_0 + bytes_1);
                if (bytes_0)
                    copy_bulk(base + B::X_BYTES, problem.panels + static_cast<int64_t>(use.y) * UNIT_BYTES, bytes_0, ready);
                if (bytes_1)
                    copy_bulk(base + B::X_BYTES + PANEL_BYTES, problem.panels + static_cast<int64_t>(use.z) * UNIT_BYTES,
                              bytes_1, ready);
            }
            barrier_arrive_after_copies(ready);
            __syncwarp();  // every lane has read the list
            if (!ahead.ended) {
                fetch_list(turn, ahead.k_block);
                ahead.advance(PRODUCER_GROUPS);
            }
            slot += PRODUCER_GROUPS;
            if (++turn == LISTS) turn = 0;
        }
    }
};

// Registers of a thread, by part. With fewer, the warps that load compute one address at a time and wait for each copy to read it:
// 10 % slower. Places of halved weights are in registers too, of several stages at a time.
template <int WIDEST, Weights WEIGHTS>
constexpr int CONSUMER_REGISTERS = WIDEST != 256 ? 152 : WEIGHTS == Weights::ALL ? 208 : 216;
template <int WIDEST, Weights WEIGHTS>
constexpr int PRODUCER_REGISTERS = WIDEST != 256 ? 104 : WEIGHTS == Weights::ALL ? 88 : 72;

template <typename T, typename Y, Weights WEIGHTS, int WIDEST>
__global__ void __launch_bounds__(Block<WIDEST>::THREADS, 1)
    gathered_sm90_persistent_kernel(const __grid_constant__ Problem problem) {
    using B = Block<WIDEST>;
    static_assert(CONSUMERS * CONSUMER_REGISTERS<WIDEST, WEIGHTS> + B::PRODUCERS * PRODUCER_REGISTERS<WIDEST, WEIGHTS> <=
                  B::THREADS * (65536 / B::THREADS / 8 * 8));
    extern __shared__ uint8_t dynamic_shared[];
    __shared__ uint64_t barriers[2 * B::STAGES];
    __shared__ uint32_t uses_of_slots[B::STAGES];
    using Producer = Producer<WIDEST, WEIGHTS>;
    __shared__ alignas(16) typename Producer::Lists lists;
    const uint32_t stages = warp_uniform((shared_address(dynamic_shared) + 1023) & ~1023u);  // the swizzle repeats every 1024 bytes
    const uint32_t full = warp_uniform(shared_address(barriers)), empty = full + 8 * B::STAGES;
    const uint32_t slot_uses = warp_uniform(shared_address(uses_of_slots));
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < B::STAGES; ++slot) {
            barrier_init(full + 8 * slot, 32 * B::GROUP_WARPS + 1);
            barrier_init(empty + 8 * slot, CONSUMERS / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS<WIDEST, WEIGHTS>));
        consume<T, Y, WEIGHTS, WIDEST>(problem, stages, full, empty, slot_uses);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS<WIDEST, WEIGHTS>));
        Producer::run(problem, stages, full, empty, slot_uses, lists);
    }
}

// How a kernel is launched.
struct Launch {
    int blocks;
    bool pdl;
    cudaStream_t stream;

    template <typename Argument>
    cudaError_t operator()(void (*kernel)(Argument), int blocks_, int threads, int bytes, const Argument& argument) const {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(blocks_);
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = bytes;
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = pdl;
        return cudaLaunchKernelEx(&config, kernel, argument);
    }
};

template <typename T, typename Y, Weights WEIGHTS, int WIDEST>
cudaError_t launch(const Problem& problem, const SharedTiles& shared, const Launch& launch) {
    using B = Block<WIDEST>;
    constexpr auto kernel = gathered_sm90_persistent_kernel<T, Y, WEIGHTS, WIDEST>;
    constexpr int bytes = 1024 + B::STAGES * B::STAGE_BYTES;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) error = launch(kernel, launch.blocks, B::THREADS, bytes, problem);
    if (error == cudaSuccess && shared.count > 0)
        error = launch(add_up_parts<T, Y, WIDEST>, shared.count * 2 * (WIDEST / QUARTER), HALF_THREADS, 0, shared);
    return error;
}

template <typename T, typename Y>
cudaError_t launch(const Problem& problem, const SharedTiles& shared, bool halved, int widest, const Launch& how) {
    switch (widest * 2 + halved) {
        case 2 * 256: return launch<T, Y, Weights::ALL, 256>(problem, shared, how);
        case 2 * 256 + 1: return launch<T, Y, Weights::HALVED, 256>(problem, shared, how);
        case 2 * 128: return launch<T, Y, Weights::ALL, 128>(problem, shared, how);
        default: return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch(const Problem& problem, const SharedTiles& shared, bool halved, int widest, const Launch& how) {
    return problem.epilogue.y_row_major ? launch<T, RowMajor<T>>(problem, shared, halved, widest, how)
                                        : launch<T, FeatureMajor<T>>(problem, shared, halved, widest, how);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes and alignment (16 bytes); m, the columns of X, is a multiple of 8, and of Y
// the first `y_m` are written. Strides are in elements. halved: whether panels hold two of every four inputs; then tiles are up to 256
// columns wide. Where Y is row-major, each eight `outputs` from a multiple of eight on are eight neighbors, the first a multiple of
// 8, or -1. shared: of the `shared_count` tiles whose k-blocks several blocks share, see SharedTiles; partials: memory for their sums.
extern "C" int sparsefront_gathered_sm90_persistent(const void* x, const void* panels, const void* k_blocks, const void* work,
                                         const void* work_begin, const void* shared, void* partials, const void* outputs,
                                         const void* bias, const void* residual, void* y, long long x_stride,
                                         long long residual_stride, long long y_stride, int bias_type, int activation,
                                         int y_row_major, int is_bfloat16, int halved, int m, int y_m, int widest, int blocks,
                                         int shared_count, int pdl, void* stream) {
    if (x_stride >= (1ll << 31)) return cudaErrorInvalidValue;
    Epilogue epilogue{static_cast<const int*>(outputs), bias, bias_type, activation, {}, residual, residual_stride, y, y_stride,
                      y_m, y_row_major};
    std::copy_n(GELU_COEFFICIENTS[activation == GELU_TANH], std::size(epilogue.gelu), epilogue.gelu);
    const Problem problem{x,
                          static_cast<const uint8_t*>(panels),
                          static_cast<const int*>(k_blocks),
                          static_cast<const int4*>(work),
                          static_cast<const int*>(work_begin),
                          static_cast<float4*>(partials),
                          epilogue,
                          static_cast<unsigned>(2 * x_stride),
                          m};
    const SharedTiles tiles{static_cast<const int4*>(shared), problem.partials, epilogue, shared_count};
    const Launch how{blocks, pdl != 0, static_cast<cudaStream_t>(stream)};
    return is_bfloat16 ? launch<__nv_bfloat16>(problem, tiles, halved, widest, how)
                       : launch<__half>(problem, tiles, halved, widest, how);
}
