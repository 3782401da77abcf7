// Products of bytes, and the vectors that they need.
#pragma once
#include "quant/formats.h"
#include "quant/vectors.h"

namespace fb::FB_ISA {

using ByteVec = uint8_t __attribute__((vector_size(4 * kLanes)));

// Whether unsigned bytes up to 255 are multiplied by signed ones without saturating.
#if defined(__AVX512BF16__)
constexpr bool kWholeBytes = true;
#else
constexpr bool kWholeBytes = false;
#endif

// Whether the levels of a type need eight bits, and what is added to them, so that they have no sign. Seven bits have
// none on any instruction set; eight bits keep theirs where there are no products of unsigned bytes.
template <class Stored>
constexpr bool is_wide() {
    return Stored::last_level - Stored::first_level > 127;
}
template <class Stored>
constexpr int byte_bias() {
    if (!is_wide<Stored>()) return -Stored::first_level;
    return kWholeBytes ? 128 : 0;
}

// The number of parts of a section that have a scale of their own, of x or of the weights.
template <class Stored>
constexpr int parts_of(int section) {
    if constexpr (Stored::weights == 32) return section / 32;
    else return Stored::parts == 16 ? 16 : 8;
}

// Sums of four products each, codes * x; on sets without such an instruction, sums of any four in each 128 bits.
// `has_sign`: the codes are signed; otherwise they are at most 127, or 255 if kWholeBytes.
template <bool has_sign>
FB_INLINE IVec dot_bytes(ByteVec codes, ByteVec x) {
#if defined(__AVX512BF16__)
    // AVX512-VNNI, without a compiler flag: every CPU with AVX512-BF16 has it, and core/dispatch.cpp checks.
    static_assert(!has_sign);
    IVec sums = {};
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "vm"(x));
    return sums;
#elif defined(__AVX512F__)
    __m512i a = (__m512i)codes, b = (__m512i)x;
    if constexpr (has_sign) {
        b = _mm512_mask_sub_epi8(b, _mm512_movepi8_mask(a), _mm512_setzero_si512(), b);
        a = _mm512_abs_epi8(a);
    }
    return (IVec)_mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    __m256i a = (__m256i)codes, b = (__m256i)x;
    if constexpr (has_sign) {
        b = _mm256_sign_epi8(b, a);
        a = _mm256_abs_epi8(a);
    }
    return (IVec)_mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
#elif defined(__x86_64__)
    const __m128i a = (__m128i)codes, b = (__m128i)x, none = _mm_setzero_si128();
    const auto low = [&](__m128i v) { return _mm_srai_epi16(_mm_unpacklo_epi8(none, v), 8); };
    const auto high = [&](__m128i v) { return _mm_srai_epi16(_mm_unpackhi_epi8(none, v), 8); };
    return (IVec)_mm_add_epi32(_mm_madd_epi16(low(a), low(b)), _mm_madd_epi16(high(a), high(b)));
#elif defined(__aarch64__)
    const int8x16_t a = (int8x16_t)codes, b = (int8x16_t)x;
#if defined(__ARM_FEATURE_DOTPROD)
    return (IVec)vdotq_s32(vdupq_n_s32(0), a, b);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return (IVec)vpadalq_s16(vpaddlq_s16(low), high);
#endif
#endif
}

// Numbers first, ... first + n - 1 of an array of vectors, each repeated in the same number of lanes.
template <int n, int vectors>
FB_INLINE Vec spread(const Vec (&numbers)[vectors], int first) {
#if defined(__AVX512F__)
    static_assert(vectors == 1);
    return (Vec)spread_lanes<n>((__m512)numbers[0], first);
#else
    const float* from = reinterpret_cast<const float*>(numbers) + first;
#if defined(__AVX2__)
    if constexpr (n == 1) return splat(*from);
    else return (Vec)_mm256_set_m128(_mm_set1_ps(from[1]), _mm_set1_ps(from[0]));
#else
    static_assert(n == 1);
    return splat(*from);
#endif
#endif
}

// 32 integers as bytes. They fit, or what is computed with them is not finite anyway.
FB_INLINE void narrow_bytes(const IVec (&whole)[kRunVectors], int8_t* out) {
#if defined(__AVX512F__)
    for (int v = 0; v < kRunVectors; v++)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + v * kLanes), _mm512_cvtepi32_epi8((__m512i)whole[v]));
#elif defined(__AVX2__)
    const __m256i low = _mm256_packs_epi32((__m256i)whole[0], (__m256i)whole[1]);
    const __m256i high = _mm256_packs_epi32((__m256i)whole[2], (__m256i)whole[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
#elif defined(__x86_64__)
    const auto eight = [&](int v) { return _mm_packs_epi32((__m128i)whole[v], (__m128i)whole[v + 1]); };
    for (int half = 0; half < 2; half++)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16 * half),
                         _mm_packs_epi16(eight(4 * half), eight(4 * half + 2)));
#else
    for (int v = 0; v < kRunVectors; v++) {
        using Narrow = int8_t __attribute__((vector_size(kLanes)));
        const Narrow narrow = __builtin_convertvector(whole[v], Narrow);
        __builtin_memcpy(out + v * kLanes, &narrow, sizeof narrow);
    }
#endif
}

// The largest of all lanes.
FB_INLINE int32_t largest_lane(IVec v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#elif defined(__AVX2__)
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
#elif defined(__aarch64__)
    return vmaxvq_s32((int32x4_t)v);
#else
    return std::max(std::max(v[0], v[1]), std::max(v[2], v[3]));
#endif
}

#if defined(__AVX512F__)
template <class Stored, int bias, class = void>
constexpr bool kHasPairs = false;
template <class Stored, int bias>
constexpr bool kHasPairs<Stored, bias, decltype(void(Stored::template byte_pair<bias>(nullptr, 0, nullptr)))> = true;

// The codes of two runs: number `run` of the block `one` and the next one, or for blocks of 32 those of both blocks.
template <class Stored, int bias>
FB_INLINE __m512i byte_pair(const uint8_t* one, int run, const uint8_t* two) {
    if constexpr (kHasPairs<Stored, bias>) {
        return Stored::template byte_pair<bias>(one, run, two);
    } else {
        const Bytes first = Stored::template byte_codes<bias>(one, run);
        const Bytes second = Stored::template byte_codes<bias>(two, run + 1);
        return _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)first), (__m256i)second, 1);
    }
}
#endif

}  // namespace fb::FB_ISA
