// A chunk: 32 kept weights of each of 32 outputs, one output to a lane, with the places of their inputs packed in bits.
#pragma once

#include "numbers.cuh"
#include "streams.cuh"

namespace lanes {

constexpr int CHUNK = 32, LANES = 32;

// BITS: of a place. BLOCK: neighbouring inputs that share a place, so that there are 32 / BLOCK places.
template <typename T, int BITS, int BLOCK>
struct Chunk {
    static constexpr int VECTORS = CHUNK * sizeof(T) / 16;  // of 16 bytes
    static constexpr int WORDS = CHUNK / BLOCK * BITS / 32;
    static constexpr int VALUES = CHUNK * LANES;     // of all lanes
    static constexpr int PLACES = WORDS * LANES;

    uint32_t values[4 * VECTORS];
    uint32_t places[WORDS];

    // Both arrays of the chunk: values as [vector][lane][16 bytes]; words as [lane][4 words], again and again, and [lane][the rest].
    __device__ __forceinline__ void load(const T* chunk, const uint32_t* words, int lane) {
        const char* source = reinterpret_cast<const char*>(chunk) + lane * 16;
#pragma unroll
        for (int vector = 0; vector < VECTORS; ++vector)
            streams::load_words(reinterpret_cast<uint32_t(&)[4]>(values[4 * vector]), source + vector * LANES * 16);
#pragma unroll
        for (int word = 0; word < WORDS; word += 4) {
            constexpr int REST = WORDS % 4;
            if constexpr (WORDS >= 4) {
                if (word + 4 <= WORDS)
                    streams::load_words(reinterpret_cast<uint32_t(&)[4]>(places[word]), words + word * LANES + lane * 4);
            }
            if constexpr (REST > 0) {
                if (word + 4 > WORDS)
                    streams::load_words(reinterpret_cast<uint32_t(&)[REST]>(places[word]), words + word * LANES + lane * REST);
            }
        }
    }

    // Of value j, times 2 to the power of SHIFT. j is known when this is compiled.
    template <int SHIFT>
    __device__ __forceinline__ uint32_t place(int j) const {
        const int bit = j / BLOCK * BITS, word = bit / 32, at = bit % 32;
        const uint32_t both = at + BITS > 32 ? __funnelshift_r(places[word], places[word + 1], at) : places[word] >> at;
        if (at + BITS > 32) return both << SHIFT & ((1u << BITS) - 1) << SHIFT;
        return (at >= SHIFT ? places[word] >> (at - SHIFT) : places[word] << (SHIFT - at)) & ((1u << BITS) - 1) << SHIFT;
    }
};

}  // namespace lanes
