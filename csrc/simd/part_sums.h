// How products with rows of x in eight bits are summed, so that a row of x has the same bits beside any others.
#pragma once
#include "simd/micro_fixed.h"

namespace fb::FB_ISA {

// Two chains of additions, which hide each other's latency. As many for any number of rows.
struct Chains {
    Vec chain[2];
    FB_INLINE Vec sum() const { return chain[0] + chain[1]; }
};

#if defined(__AVX512BF16__)

// On sets with AVX512-VNNI, single rows (simd/skinny_bytes.h) and tiles (simd/byte_tiles.h) are summed in one order.
// The integer products of a part, which has a scale of its own, are summed first, which is exact. Each section adds
//
//   P_j + P_(j + 8)    P: the products of a part; a missing one is zero
//
// to sum j of eight. Sums j and j + 4 are added, then j and j + 2, then the last two.
constexpr int kPartSums = 8;

// The products of parts from their integers: dots * both + offset * total, where an `offset` exists. It is rounded as
// written, because the compiler must not fuse it with what is added next.
template <bool has_offset>
FB_INLINE Vec part_products(IVec dots, Vec both, Vec offset, Vec total) {
    const Vec products = settled(to_float(dots) * both);
    if constexpr (has_offset) return (Vec)_mm512_fmadd_ps((__m512)offset, (__m512)total, (__m512)products);
    else return products;
}

// The sums of a single row, spread over lanes. P_j is in lane j, of `parts`.
template <int parts>
struct EightSums {
    __m256 sums;
    FB_INLINE void add(Vec products) {
        __m256 eight = _mm512_castps512_ps256((__m512)products);
        if constexpr (parts == 16) eight = _mm256_add_ps(eight, _mm512_extractf32x8_ps((__m512)products, 1));
        sums = _mm256_add_ps(sums, eight);
    }
    FB_INLINE Vec sum() const { return (Vec)_mm512_zextps256_ps512(sums); }
};

// In each 128 bits: the sums a0 + a2, b0 + b2, a1 + a3, b1 + b3.
FB_INLINE IVec pair_sums(IVec a, IVec b) {
    return (IVec)_mm512_unpacklo_epi32((__m512i)a, (__m512i)b) + (IVec)_mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
}
// Of two such pairs, in each 128 bits: the sums of a, b, c and d.
FB_INLINE IVec quad_sums(IVec ab, IVec cd) {
    return (IVec)_mm512_unpacklo_epi64((__m512i)ab, (__m512i)cd) +
           (IVec)_mm512_unpackhi_epi64((__m512i)ab, (__m512i)cd);
}
// The sums of neighbouring 128 bits of a, then of b.
FB_INLINE IVec half_sums(IVec a, IVec b) {
    return (IVec)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0x88) +
           (IVec)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0xdd);
}
// The sums of parts in their order. A vector of products had `parts` of them.
template <int parts>
FB_INLINE IVec in_order(IVec sums) {
    IVec from;
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; j++) from[j] = j % parts * 4 + j / parts % 4 + j / (4 * parts) * 4 * parts;
    return (IVec)_mm512_permutexvar_epi32((__m512i)from, (__m512i)sums);
}

#endif

}  // namespace fb::FB_ISA
