// Unpacking stored weights straight to bf16, a run of 32 at a time, in the order of the row. Rounded once, to nearest
// even, from the exact value: the same bits as unpack_run followed by a conversion.
#pragma once
#include "simd/unpack.h"

namespace fb::FB_ISA {

using Run = uint16_t __attribute__((vector_size(2 * kRun)));

#if defined(__AVX512BF16__)

FB_INLINE __m512 codes(float first) {  // first, first + 1, ... first + 15
    return _mm512_add_ps(_mm512_set1_ps(first), _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

FB_INLINE __m512 splat_half(const uint8_t* bytes) { return _mm512_set1_ps(head_half(bytes)); }

FB_INLINE Run narrow(__m512 low, __m512 high) { return (Run)_mm512_cvtne2ps_pbh(high, low); }

// 16 bytes as 32 words: the bytes themselves (low nibbles plus four bits of dirt), then their high nibbles.
FB_INLINE __m512i nibble_words(const uint8_t* nibbles) {
    const __m512i words = _mm512_castsi256_si512(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)nibbles)));
    const __m512i twice = _mm512_shuffle_i64x2(words, words, 0x44);
    return _mm512_srlv_epi16(twice, _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1));
}

// Table look-ups. A block has at most 16 or 32 distinct weights: they are computed and rounded once, and the codes pick
// them with one permutation. It reads five bits of each index, so a table of 16 stands in it twice.
FB_INLINE Run look_up(__m512i index, __m512 levels) {
    return (Run)_mm512_permutexvar_epi16(index, (__m512i)_mm512_cvtne2ps_pbh(levels, levels));
}
FB_INLINE Run look_up(__m512i index, __mmask32 fifth, __m512 low, __m512 high) {
    const __m512i four = _mm512_and_si512(index, _mm512_set1_epi16(15));
    return (Run)_mm512_permutexvar_epi16(_mm512_mask_add_epi16(four, fifth, four, _mm512_set1_epi16(16)),
                                         (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

FB_INLINE __m512 bytes_to_float(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

template <TensorType type>
FB_INLINE Run bf16_run(const uint8_t* row, int64_t run) {
    if constexpr (type == TensorType::F32) {
        return narrow(_mm512_loadu_ps(row + run * 128), _mm512_loadu_ps(row + run * 128 + 64));
    } else if constexpr (type == TensorType::F16) {
        const __m256i* halves = (const __m256i*)(row + run * 64);
        return narrow(_mm512_cvtph_ps(_mm256_loadu_si256(halves)), _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1)));
    } else if constexpr (type == TensorType::BF16) {
        return load_raw<Run>(row + run * 64);
    } else if constexpr (type == TensorType::Q4_0) {
        const uint8_t* block = row + run * 18;
        return look_up(nibble_words(block + 2), splat_half(block) * codes(-8));
    } else if constexpr (type == TensorType::Q4_1) {
        const uint8_t* block = row + run * 20;
        return look_up(nibble_words(block + 4), splat_half(block) * codes(0) + splat_half(block + 2));
    } else if constexpr (type == TensorType::Q5_0) {
        const uint8_t* block = row + run * 22;
        const __m512 d = splat_half(block);
        return look_up(nibble_words(block + 6), load_u32(block + 2), d * codes(-16), d * codes(0));
    } else if constexpr (type == TensorType::Q5_1) {
        const uint8_t* block = row + run * 24;
        const __m512 d = splat_half(block), m = splat_half(block + 2);
        return look_up(nibble_words(block + 8), load_u32(block + 4), d * codes(0) + m, d * codes(16) + m);
    } else if constexpr (type == TensorType::Q8_0) {
        const uint8_t* block = row + run * 34;
        const __m512 d = splat_half(block);
        const __m128i* bytes = (const __m128i*)(block + 2);
        return narrow(d * bytes_to_float(_mm_loadu_si128(bytes)), d * bytes_to_float(_mm_loadu_si128(bytes + 1)));
    } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
        constexpr bool five = type == TensorType::Q5_K;
        const uint8_t* block = row + run / 8 * (five ? 176 : 144);
        const int sub = int(run % 8);
        const ScaleAndMin s = k_scale(block + 4, sub);
        const __m512 step = splat_half(block) * _mm512_set1_ps(float(s.scale));
        const __m512 offset = splat_half(block + 2) * _mm512_set1_ps(float(s.min));
        const __m256i bytes = _mm256_loadu_si256((const __m256i*)(block + (five ? 48 : 16) + sub / 2 * 32));
        const __m512i index = _mm512_srl_epi16(_mm512_cvtepu8_epi16(bytes), _mm_cvtsi32_si128(sub % 2 * 4));
        if constexpr (five) {
            const __m256i high = _mm256_loadu_si256((const __m256i*)(block + 16));
            const __mmask32 fifth = _mm256_test_epi8_mask(high, _mm256_set1_epi8(char(1 << sub)));
            return look_up(index, fifth, step * codes(0) - offset, step * codes(16) - offset);
        } else {
            return look_up(index, step * codes(0) - offset);
        }
    } else {
        static_assert(type == TensorType::Q6_K);
        const uint8_t* block = row + run / 8 * 210;
        const int half = int(run % 8) / 4, quarter = int(run % 4);
        const __m256i low = _mm256_loadu_si256((const __m256i*)(block + half * 64 + quarter % 2 * 32));
        const __m256i high = _mm256_loadu_si256((const __m256i*)(block + 128 + half * 32));
        // Shifts move words, so bits that cross from one byte to the next are masked away.
        const __m256i four =
            _mm256_and_si256(_mm256_srl_epi16(low, _mm_cvtsi32_si128(quarter / 2 * 4)), _mm256_set1_epi8(15));
        const __m256i two = _mm256_and_si256(
            _mm256_slli_epi16(_mm256_srl_epi16(high, _mm_cvtsi32_si128(quarter * 2)), 4), _mm256_set1_epi8(48));
        const __m256i code = _mm256_sub_epi8(_mm256_or_si256(four, two), _mm256_set1_epi8(32));
        const __m512 d = _mm512_set1_ps(half_to_float(block + 208));
        const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192 + half * 8 + quarter * 2);
        return narrow(d * _mm512_set1_ps(float(scales[0])) * bytes_to_float(_mm256_castsi256_si128(code)),
                      d * _mm512_set1_ps(float(scales[1])) * bytes_to_float(_mm256_extracti128_si256(code, 1)));
    }
}

#else

template <TensorType type>
FB_INLINE Run bf16_run(const uint8_t* row, int64_t run) {
    const Floats values = unpack_run<type>(row, run);
    uint16_t bits[kRun];
    for (int v = 0; v < kRunVectors; v++) store(bits + v * kLanes, values.v[v]);
    return load_raw<Run>(bits);
}

#endif

// `count` <= 32 weights from `first`, a multiple of 32, on; the rest of the run is zero.
template <TensorType type>
FB_INLINE Run bf16_part(const uint8_t* row, int64_t first, int64_t count) {
    if (count >= kRun) return bf16_run<type>(row, first / kRun);
    float values[kRun] = {};
    uint16_t bits[kRun];
    if (count > 0) decode_row(type, row, first, count, values);
    for (int i = 0; i < kRun; i++) bits[i] = f32_to_bf16(values[i]);
    return load_raw<Run>(bits);
}

}  // namespace fb::FB_ISA
