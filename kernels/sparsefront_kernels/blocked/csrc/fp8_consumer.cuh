// Consumer warpgroups of the fp8 kernel. Tensor cores accumulate the 128 inputs of a k-block with few bits; k-blocks are accumulated
// in float32, each times the scales of its rows of X if k-blocks have their own (GROUPED).
#pragma once

#include "fp8_store.cuh"
#include "../../cuda/shared_sums.cuh"

namespace {

constexpr int ROW_FLOATS = OUTPUTS + 8;  // per row of sums in shared memory: rows of a warp's store start in different banks
constexpr int RUN = 8, RUNS = OUTPUTS / RUN;  // outputs that a thread finishes together

// Eight neighboring outputs of a CTA tile that a thread finishes, for split-K: Y from sums in shared memory.
struct Run {
    int number, output;  // index within the tile; first output, or -1
    float4 scales[2];
    uint32_t stored_bias[RUN];

    __device__ __forceinline__ explicit Run(const Tile& tile) : number(threadIdx.x % RUNS), scales{}, stored_bias{} {
        const int first = tile.output(number * RUN / HALF);
        output = first < 0 ? -1 : first + number * RUN % HALF;
    }

    // Scales and bias of its outputs.
    __device__ __forceinline__ void load(const Problem& problem) {
        if (output < 0) return;
#pragma unroll
        for (int four = 0; four < 2; ++four) scales[four] = load_early(reinterpret_cast<const float4*>(problem.w_scales + output) + four);
#pragma unroll
        for (int i = 0; i < RUN; ++i) stored_bias[i] = load_bias(problem.epilogue, output + i);
    }

    // Converts the sums of a row to elements of Y.
    __device__ __forceinline__ void finish(const Epilogue& epilogue, float x_scale, float (&v)[RUN]) const {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const float4& four = scales[i / 4];
            const float scale = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
            v[i] = fmaf(v[i] * x_scale, scale, bias_of(epilogue, stored_bias[i]));
        }
        if (epilogue.activation != NONE) activate_for_16_bits(v, epilogue);
    }
};

template <typename T>
__device__ __forceinline__ void store_run(const Problem& problem, const Run& run, int row, float (&v)[RUN]) {
    const bool exists = run.output >= 0 && row < problem.m;
    if constexpr (IS_QUANTIZED<T>) {
        float size = 0.0f;
#pragma unroll
        for (float value : v) size = fmaxf(size, fabsf(value));
        const float scale = scale_of(largest_size<RUNS, RUN>(size, v, 0, 2)), reciprocal = __frcp_rn(scale);
#pragma unroll
        for (float& value : v) value *= reciprocal;
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            words[i] = packed_e4m3(v[4 * i], v[4 * i + 1]) | packed_e4m3(v[4 * i + 2], v[4 * i + 3]) << 16;
        if (!exists) return;
        uint8_t* y = static_cast<uint8_t*>(problem.epilogue.y) + row * problem.epilogue.y_stride + run.output;
        *reinterpret_cast<uint2*>(y) = make_uint2(words[0], words[1]);
        if (run.number == 0)
            problem.y_scales[static_cast<int64_t>(row) * (problem.n / OUTPUTS) + run.output / OUTPUTS] = scale;
    } else {
        if (!exists) return;
        uint32_t words[4];
        if (problem.epilogue.residual != nullptr) {
            const T* residual = static_cast<const T*>(problem.epilogue.residual) + row * problem.epilogue.residual_stride + run.output;
            const uint4 found = *reinterpret_cast<const uint4*>(residual);
            const uint32_t of[4] = {found.x, found.y, found.z, found.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 both = unpacked<T>(of[i]);
                v[2 * i] += both.x, v[2 * i + 1] += both.y;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = packed<T>(v[2 * i], v[2 * i + 1]);
        T* y = static_cast<T*>(problem.epilogue.y) + row * problem.epilogue.y_stride + run.output;
        *reinterpret_cast<uint4*>(y) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Pieces of work tiles store partial sums to global memory; a second kernel adds them in a fixed order and finishes Y, so equal
// operands give bit-identical results.
constexpr int EIGHTS = OUTPUTS / 8;               // blocks of eight outputs per unit
constexpr int EIGHT_FLOATS = WARPGROUP * 4;       // a thread holds four sums of each
constexpr int UNIT_FLOATS = EIGHTS * EIGHT_FLOATS;
constexpr int CUT_ROWS = GROUP_ROWS / 4;           // rows per CTA of the second kernel: those of a warp
constexpr int ADDING = EIGHTS * 32;               // threads per CTA of the second kernel, with four sums each

// Stores a warpgroup's sums of a piece in the threads' accumulator layout.
__device__ __forceinline__ void leave_sums(float* sums, int unit, const float (&acc)[64]) {
    float* to = sums + static_cast<int64_t>(unit) * UNIT_FLOATS + threadIdx.x % WARPGROUP * 4;
#pragma unroll
    for (int eight = 0; eight < EIGHTS; ++eight) {
        const float* v = acc + eight * 4;
        *reinterpret_cast<float4*>(to + eight * EIGHT_FLOATS) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

// Adds the pieces of a cut tile in k-block order, and finishes the rows of one warp.
template <typename T>
__device__ __forceinline__ void finish_rows(const Problem& problem, int cut_tile, int first_row, float (&shared)[CUT_ROWS][ROW_FLOATS]) {
    const int4 place = load_early(problem.cut_tiles + cut_tile);
    const Tile tile(make_int4(place.x, 0, 0, place.y + first_row));
    Run run(tile);
    const int in_tile = static_cast<int>(threadIdx.x) / RUNS, row = tile.row + in_tile, lane = threadIdx.x % 32;
    const bool finishes = in_tile < CUT_ROWS;
    if (place.w > 0) pdl_wait();  // always true: without the branch the compiler moves the loads after the wait
    const float x_scale = finishes && problem.x_groups == 1 && row < problem.m ? load_x_scale(problem.x_scales + row) : 1.0f;
    if (tile.row >= problem.m) return;
    const float* from = problem.sums + (static_cast<int64_t>(place.z) + first_row / GROUP_ROWS) * UNIT_FLOATS +
                        static_cast<int>(threadIdx.x) / 32 * EIGHT_FLOATS + (first_row % GROUP_ROWS / CUT_ROWS * 32 + lane) * 4;
    const float4 sums = add_pieces(from, place.w, static_cast<int64_t>(problem.piece_units) * UNIT_FLOATS, [&] { run.load(problem); });
    const int output = static_cast<int>(threadIdx.x) / 32 * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(&shared[lane / 4][output]) = make_float2(sums.x, sums.y);
    *reinterpret_cast<float2*>(&shared[lane / 4 + 8][output]) = make_float2(sums.z, sums.w);
    __syncthreads();
    if (!finishes) return;
    float v[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) v[i] = shared[in_tile][run.number * RUN + i];
    run.finish(problem.epilogue, x_scale, v);
    store_run<T>(problem, run, row, v);
}

// k-blocks accumulated in the tensor cores: one, if it has its own scales.
template <bool GROUPED>
constexpr int ADDED_AT_ONCE = GROUPED ? 1 : 2;

template <bool GROUPED, int COUNT>
__device__ __forceinline__ void promote(float* sums, const float (&acc)[COUNT], const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = GROUPED ? fmaf(acc[i], scales[i / 2 % 2], sums[i]) : sums[i] + acc[i];
}

// A pipeline stage as seen by a consumer warpgroup.
template <typename S, bool SPLIT, bool GROUPED>
struct Stage {
    uint32_t shared;
    int slot;

    __device__ __forceinline__ uint32_t x(int group) const { return shared + slot * S::STAGE_BYTES + (SPLIT ? 0 : group * GROUP_BYTES); }
    __device__ __forceinline__ uint32_t panels() const { return shared + slot * S::STAGE_BYTES + S::X_BYTES; }

    // Scales of this thread's two rows of X.
    __device__ __forceinline__ void load_scales(float (&scales)[2]) const {
        if constexpr (GROUPED) {
            const int row = (SPLIT ? threadIdx.x % WARPGROUP : threadIdx.x) / 32 * 16 + threadIdx.x % 32 / 4;
            const uint32_t own = shared + S::SCALES + slot * S::SCALE_BYTES + row * 4;
#pragma unroll
            for (int p = 0; p < 2; ++p) scales[p] = __uint_as_float(load_word(own + p * 32));
        }
    }

    // Releases the stage to every CTA of the cluster, since each multicasts weights.
    __device__ __forceinline__ void release(int cluster) const {
        const int lane = threadIdx.x % 32;
        const uint32_t empty = shared + S::EMPTY + 8 * slot;
        __syncwarp();  // all lanes have read their scales
        if (cluster == 1) {
            if (lane == 0) barrier_arrive(empty);
        } else if (lane < cluster) {
            barrier_arrive_in_cluster(empty, lane);
        }
    }
};

// Adds the products of a stage, for one or both halves, to the sums.
template <typename S, bool SPLIT, bool GROUPED>
__device__ __forceinline__ void add_halves(const Stage<S, SPLIT, GROUPED>& stage, int cluster, int group, float (&sums)[64]) {
    const uint32_t uses = warp_uniform(load_word(stage.shared + S::WORDS + 4 * stage.slot));
    float scales[2];
    if (uses == 3) {
        float acc[64];
        multiply_k_block<128, true>(acc, stage.x(group), stage.panels());
        stage.load_scales(scales);
        wgmma_wait<0>();
        fence_sums(acc);
        stage.release(cluster);
        promote<GROUPED>(sums, acc, scales);
    } else {
        float acc[32];
        multiply_k_block<64, true>(acc, stage.x(group), stage.panels() + (uses == 2 ? PANEL_BYTES : 0));
        stage.load_scales(scales);
        wgmma_wait<0>();
        fence_sums(acc);
        stage.release(cluster);
        if (uses == 1) {
            promote<GROUPED>(sums, acc, scales);
        } else {
            promote<GROUPED>(sums + 32, acc, scales);
        }
    }
}

// Products of one or two stages, for both halves, in flight.
template <bool GROUPED>
struct Flight {
    float acc[64], scales[2];

    template <bool FIRST, typename StageOf>
    __device__ __forceinline__ void begin(const StageOf& stage, int group) {
        multiply_k_block<128, FIRST>(acc, stage.x(group), stage.panels());
        stage.load_scales(scales);
    }

    __device__ __forceinline__ void end(float (&sums)[64]) {
        fence_sums(acc);
        promote<GROUPED>(sums, acc, scales);
    }
};

// Accumulates `count` k-blocks. next(): waits for the next stage. With two warpgroups the next products are always in flight, unless
// halves differ: instructions of two widths leave too few registers. With three, the others multiply meanwhile.
template <typename S, bool SPLIT, bool GROUPED, bool HALVES, typename Next>
__device__ __forceinline__ void add_up(int cluster, int group, int count, float (&sums)[64], const Next& next) {
    if constexpr (HALVES) {
        for (; count > 0; --count) add_halves(next(), cluster, group, sums);
    } else if constexpr (S::GROUPS > 2) {
        while (count > 0) {
            Flight<GROUPED> a;
            Stage<S, SPLIT, GROUPED> stage = next();
            a.template begin<true>(stage, group);
            if (ADDED_AT_ONCE<GROUPED> == 2 && count > 1) {
                const Stage<S, SPLIT, GROUPED> before = stage;
                stage = next();
                a.template begin<false>(stage, group);
                wgmma_wait<1>();
                before.release(cluster);
                --count;
            }
            wgmma_wait<0>();
            stage.release(cluster);
            a.end(sums);
            --count;
        }
    } else {
        if (count <= 0) return;
        Flight<GROUPED> a, b;
        Stage<S, SPLIT, GROUPED> stage = next();
        a.template begin<true>(stage, group);
        // the next products, into the same or other accumulators; the previous ones have then completed
        const auto continue_with = [&](auto& flight, auto first) {
            const Stage<S, SPLIT, GROUPED> before = stage;
            stage = next();
            flight.template begin<decltype(first)::value>(stage, group);
            wgmma_wait<1>();
            before.release(cluster);
        };
        const auto ends_with = [&](auto& flight) {
            if (--count > 0) return false;
            wgmma_wait<0>();
            fence_sums(flight.acc);
            stage.release(cluster);
            flight.end(sums);
            return true;
        };
        while (true) {
            if (ends_with(a)) return;
            if constexpr (ADDED_AT_ONCE<GROUPED> == 2) {
                continue_with(a, std::false_type{});
                if (ends_with(a)) return;
            }
            continue_with(b, std::true_type{});
            a.end(sums);
            if (ends_with(b)) return;
            if constexpr (ADDED_AT_ONCE<GROUPED> == 2) {
                continue_with(b, std::false_type{});
                if (ends_with(b)) return;
            }
            continue_with(a, std::true_type{});
            b.end(sums);
        }
    }
}

template <typename S, typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume(const Problem& problem, int rank, uint32_t shared) {
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.cluster;
    const auto row_of = [&](const Tile& tile) { return tile.row + rank * S::ROWS + group * GROUP_ROWS; };
    Store<T, S> store(shared, group);
    const int4* next = problem.work + __ldg(problem.work_begin + cluster);
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster + 1);
    // read the next tile's tables ahead
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(problem.first_work + cluster);
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    Scales<GROUPED> next_scales;
    next_scales.load(problem, Tile(ahead[0]), row_of(Tile(ahead[0])));
    const int* next_unit = problem.units == nullptr ? nullptr : problem.units + (next - problem.work);
    Ring ring;
    for (; next < end; ++next) {
        const int unit = next_unit == nullptr ? -1 : __ldg(next_unit++);
        const Tile tile(ahead[0]);
        const Scales<GROUPED> scales = next_scales;
        ahead[0] = ahead[1];
        if (next + 2 < end) ahead[1] = load_early(next + 2);
        const int row = row_of(tile);
        if (unit < 0) store.begin(problem, tile, row);
        float sums[64] = {};
        add_up<S, false, GROUPED, HALVES>(problem.cluster, group, tile.k_blocks, sums, [&] {
            const Stage<S, false, GROUPED> stage{shared, ring.slot};
            barrier_wait(shared + S::FULL + 8 * ring.slot, ring.phase);
            ring.advance(S::STAGES);
            return stage;
        });
        next_scales.load(problem, Tile(ahead[0]), row_of(Tile(ahead[0])));  // repeated if there is no next tile
        if (unit < 0) {
            store.end(problem, tile, row, sums, scales);
        } else if (row < problem.m) {
            leave_sums(problem.sums, unit + rank * S::GROUPS + group, sums);
        }
    }
    store.leave();
}

// Split-K: the CTAs of a cluster, and their warpgroups in turn, process the k-blocks of a work tile of 64 rows of X; then each adds
// up and stores some of the rows.
constexpr int SUM_BYTES = GROUP_ROWS * ROW_FLOATS * 4;

// Adds eight sums of both warpgroups of one or two CTAs, with all loads in flight together.
template <int BLOCKS>
__device__ __forceinline__ void add_run(uint32_t from, int first_block, float (&v)[RUN]) {
    float4 found[BLOCKS * 4];
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; ++i)
        found[i] = load_from_cluster(from + i / 2 % 2 * SUM_BYTES + i % 2 * 16, first_block + i / 4);
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; ++i) {
        float* four = v + i % 2 * 4;
        four[0] += found[i].x, four[1] += found[i].y, four[2] += found[i].z, four[3] += found[i].w;
    }
}

template <typename S, typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume_part(const Problem& problem, int rank, uint32_t shared) {
    static_assert(S::GROUPS == 2 && 2 * SUM_BYTES <= S::OUT);
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.splits;
    Tile tile(load_early(problem.first_work + cluster));
    tile.take_part(rank, problem.splits);
    Run run(tile);
    run.load(problem);
    float sums[64] = {};
    int next = group;
    add_up<S, true, GROUPED, HALVES>(1, group, (tile.k_blocks + 1 - group) / 2, sums, [&] {
        const Stage<S, true, GROUPED> stage{shared, next % S::STAGES};
        barrier_wait(shared + S::FULL + 8 * stage.slot, next / S::STAGES & 1);
        next += 2;
        return stage;
    });
    asm volatile("bar.sync 3, %0;" ::"n"(CONSUMERS) : "memory");  // all stages have been read
    const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const uint32_t at = (own_row + i / 2 % 2 * 8) * ROW_FLOATS + i / 4 * 8 + lane % 4 * 2;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared + group * SUM_BYTES + at * 4), "f"(sums[i]), "f"(sums[i + 1])
                     : "memory");
    }
    cluster_sync();  // includes the producer warps
    const int row_count = GROUP_ROWS / problem.splits;
    for (int in_part = threadIdx.x / RUNS; in_part < row_count; in_part += CONSUMERS / RUNS) {
        const int in_tile = rank * row_count + in_part, row = tile.row + in_tile;
        const float x_scale = !GROUPED && row < problem.m ? load_x_scale(problem.x_scales + row) : 1.0f;
        const uint32_t from = shared + (in_tile * ROW_FLOATS + run.number * RUN) * 4;
        float v[RUN] = {};
        if (problem.splits == 1) {
            add_run<1>(from, 0, v);
        } else {
            for (int block = 0; block < problem.splits; block += 2) add_run<2>(from, block, v);
        }
        run.finish(problem.epilogue, x_scale, v);
        store_run<T>(problem, run, row, v);
    }
}

}  // namespace
