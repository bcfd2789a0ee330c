// Sums that several blocks of a kernel left in memory for the kernel after it, which adds them up in a fixed order.
#pragma once

#include <cstdint>

namespace {

constexpr int PIECES_AT_ONCE = 4;  // whose loads are under way together

// Adds to `sums` what `pieces` left, one after the other. from, step: of the first piece the thread's first four sums, and how far
// those of the next piece are; own: how far its next four are. meanwhile(): runs once, while the first loads are under way.
template <int FOURS, typename Meanwhile>
__device__ __forceinline__ void add_pieces(const float* from, int pieces, int64_t step, int own, float (&sums)[FOURS][4],
                                           const Meanwhile& meanwhile) {
    for (int done = 0; done < pieces; done += PIECES_AT_ONCE) {
        float4 found[PIECES_AT_ONCE][FOURS];
#pragma unroll
        for (int piece = 0; piece < PIECES_AT_ONCE; ++piece)
#pragma unroll
            for (int i = 0; i < FOURS; ++i)
                found[piece][i] = done + piece < pieces
                                      ? __ldcg(reinterpret_cast<const float4*>(from + (done + piece) * step + i * own))
                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (done == 0) meanwhile();
#pragma unroll
        for (int piece = 0; piece < PIECES_AT_ONCE; ++piece)
#pragma unroll
            for (int i = 0; i < FOURS; ++i) {
                const float4 v = found[piece][i];
                sums[i][0] += v.x, sums[i][1] += v.y, sums[i][2] += v.z, sums[i][3] += v.w;
            }
    }
}

}  // namespace
