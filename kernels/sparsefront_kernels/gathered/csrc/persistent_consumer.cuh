// The warpgroups that multiply, of the persistent kernel.
#pragma once

#include "persistent_store.cuh"

namespace {

// The stages and their barriers as a consumer warpgroup sees them.
struct Stages {
    uint32_t full, empty, slot_uses;
    uint32_t first_x, first_w;  // lower halves of descriptors
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

// Sums of a part of a tile's k-blocks, for `add_up_parts`; zeros where there were no products.
template <int WIDTH>
__device__ __forceinline__ void store_partial(float4* partial, const float (&acc)[WIDTH / 2], bool any) {
#pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i) {
        const float4 v = make_float4(acc[i * 4], acc[i * 4 + 1], acc[i * 4 + 2], acc[i * 4 + 3]);
        partial[i * CONSUMERS + threadIdx.x] = any ? v : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// Adds up all k-blocks of a work tile and stores it.
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
            wgmma_wait<1>();  // the stage before this one has been read
        } else {
            if constexpr (WEIGHTS == Weights::ALL) {
                switch (__popc(use)) {
                    case 3: multiply<T, WIDTH, 3>(acc, w, x, use, add); break;
                    case 2: multiply<T, WIDTH, 2>(acc, w, x, use, add); break;
                    case 1: multiply<T, WIDTH, 1>(acc, w, x, use, add); break;
                }
            }
            wgmma_wait<0>();  // where halves keep different inputs, loads take longer than products: free the stage
        }
        add |= use != 0;
        __syncwarp();  // every lane has read what it reads itself of the stage
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
    const int first_output = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // of this thread, among the CTA tile's
    const auto load_outputs = [&](const int4& of, int (&outputs)[2]) {
        const int cta_tile = of.w < 0 ? 0 : of.x;  // a part of a tile stores no outputs
#pragma unroll
        for (int p = 0; p < 2; ++p)
            outputs[p] = load_early(problem.epilogue.outputs + cta_tile * 2 * HALF + first_output + p * 8);
    };
    float acc[WIDEST / 2];
    // what a tile needs is read while those before are computed: where it is, then its outputs, then their bias
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(next);
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    pdl_wait();  // tables of work were there before the launch; all else may come from kernels that still run
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

}  // namespace
