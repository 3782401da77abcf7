// Permutations of two vectors, and the transpose built from them.
#pragma once
#include <utility>

#include "simd/isa.h"

namespace fb::FB_ISA {

// The integer vector that indexes a V.
template <class V>
struct IndexOf {
    using type = V;
};
template <>
struct IndexOf<Vec> {
    using type = IVec;
};

// out[i] = (a, b)[Pattern::at(i)], where b's lanes are counted after a's.
template <class Pattern, class V, int... i>
FB_INLINE V pick(V a, V b, std::integer_sequence<int, i...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Pattern::at(i)...);
#else
    using Index = typename IndexOf<V>::type;
    return __builtin_shuffle(a, b, Index{Pattern::at(i)...});
#endif
}
template <class Pattern, class V>
FB_INLINE V pick(V a, V b) {
    return pick<Pattern>(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>{});
}

// Patterns that are a single instruction: zips within each 128 bits, and exchanges of 128-bit blocks.
template <int high>
struct ZipWords {
    static constexpr int at(int i) { return i / 4 * 4 + i % 4 / 2 + 2 * high + i % 2 * kLanes; }
};
template <int high>
struct ZipPairs {
    static constexpr int at(int i) { return i / 4 * 4 + i % 2 + 2 * high + i % 4 / 2 * kLanes; }
};
template <int high>
struct Halves {
    static constexpr int at(int i) { return i % (kLanes / 2) + high * kLanes / 2 + i / (kLanes / 2) * kLanes; }
};
template <int odd>
struct Blocks {  // of four blocks each: a's even ones, then b's, or the odd ones
    static constexpr int at(int i) { return i % 4 + (i / 4 % 2 * 2 + odd) * 4 + i / 8 * kLanes; }
};

template <int high>
struct ZipQuads {
    static constexpr int at(int i) { return i / 2 * 2 + high + i % 2 * (kLanes / 2); }
};
template <int high>
struct Interleave {  // a0 b0 a1 b1 ... of 16-bit lanes
    static constexpr int at(int i) { return i / 2 + high * kLanes + i % 2 * 2 * kLanes; }
};

FB_INLINE void transpose(Vec (&v)[kLanes]) {
    for (int s = 0; s < kLanes; s += 4) {  // four rows at a time: within each 128 bits, 4 x 4
        const Vec a = pick<ZipWords<0>>(v[s], v[s + 1]), b = pick<ZipWords<1>>(v[s], v[s + 1]);
        const Vec c = pick<ZipWords<0>>(v[s + 2], v[s + 3]), d = pick<ZipWords<1>>(v[s + 2], v[s + 3]);
        v[s] = pick<ZipPairs<0>>(a, c);
        v[s + 1] = pick<ZipPairs<1>>(a, c);
        v[s + 2] = pick<ZipPairs<0>>(b, d);
        v[s + 3] = pick<ZipPairs<1>>(b, d);
    }
    for (int k = 0; k < 4; k++) {  // then the 128-bit blocks
        if constexpr (kLanes == 8) {
            const Vec a = v[k], b = v[k + 4];
            v[k] = pick<Halves<0>>(a, b);
            v[k + 4] = pick<Halves<1>>(a, b);
        } else if constexpr (kLanes == 16) {
            const Vec a = pick<Halves<0>>(v[k], v[k + 4]), b = pick<Halves<1>>(v[k], v[k + 4]);
            const Vec c = pick<Halves<0>>(v[k + 8], v[k + 12]), d = pick<Halves<1>>(v[k + 8], v[k + 12]);
            v[k] = pick<Blocks<0>>(a, c);
            v[k + 4] = pick<Blocks<1>>(a, c);
            v[k + 8] = pick<Blocks<0>>(b, d);
            v[k + 12] = pick<Blocks<1>>(b, d);
        }
    }
}

// Transposes 2 x 2 of 64 bits in each 128 bits.
FB_INLINE void transpose(QVec (&v)[2]) {
    const QVec a = v[0], b = v[1];
    v[0] = pick<ZipQuads<0>>(a, b);
    v[1] = pick<ZipQuads<1>>(a, b);
}

// Interleaves rows of 16-bit lanes into their columns, one after the other.
FB_INLINE void interleave(WVec (&v)[2]) {
    const WVec a = v[0], b = v[1];
    v[0] = pick<Interleave<0>>(a, b);
    v[1] = pick<Interleave<1>>(a, b);
}
FB_INLINE void interleave(WVec (&v)[4]) {
    WVec even[2] = {v[0], v[2]}, odd[2] = {v[1], v[3]};
    interleave(even);
    interleave(odd);
    for (int half = 0; half < 2; half++) {
        WVec four[2] = {even[half], odd[half]};
        interleave(four);
        v[2 * half] = four[0];
        v[2 * half + 1] = four[1];
    }
}

// The sums of kLanes vectors, one per lane.
FB_INLINE Vec lane_sums(Vec (&v)[kLanes]) {
    transpose(v);
    for (int half = kLanes / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

}  // namespace fb::FB_ISA
