// Unpacking stored weights straight to bf16, a run of 32 at a time, in the order of the row. Rounded once, to nearest
// even, from the exact value: the same bits as unpack_run followed by a conversion.
#pragma once
#include "simd/unpack.h"

namespace fb::FB_ISA {

using Run = uint16_t __attribute__((vector_size(2 * kRun)));

// What is unpacked at once: one run, or two where they share bytes.
template <TensorType type>
constexpr int kRuns = block_shape(type).weights == 256 ? 2 : 1;
template <TensorType type>
struct Runs {
    static constexpr int kWeights = kRuns<type> * kRun;
    Run v[kRuns<type>];
};

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
FB_INLINE Runs<type> bf16_runs(const uint8_t* row, int64_t run) {
    if constexpr (type == TensorType::F32) {
        return {narrow(_mm512_loadu_ps(row + run * 128), _mm512_loadu_ps(row + run * 128 + 64))};
    } else if constexpr (type == TensorType::F16) {
        const __m256i* halves = (const __m256i*)(row + run * 64);
        return {narrow(_mm512_cvtph_ps(_mm256_loadu_si256(halves)), _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1)))};
    } else if constexpr (type == TensorType::BF16) {
        return {load_raw<Run>(row + run * 64)};
    } else if constexpr (type == TensorType::Q4_0) {
        const uint8_t* block = row + run * 18;
        return {look_up(nibble_words(block + 2), splat_half(block) * codes(-8))};
    } else if constexpr (type == TensorType::Q4_1) {
        const uint8_t* block = row + run * 20;
        return {look_up(nibble_words(block + 4), splat_half(block) * codes(0) + splat_half(block + 2))};
    } else if constexpr (type == TensorType::Q5_0) {
        const uint8_t* block = row + run * 22;
        const __m512 d = splat_half(block);
        return {look_up(nibble_words(block + 6), load_u32(block + 2), d * codes(-16), d * codes(0))};
    } else if constexpr (type == TensorType::Q5_1) {
        const uint8_t* block = row + run * 24;
        const __m512 d = splat_half(block), m = splat_half(block + 2);
        return {look_up(nibble_words(block + 8), load_u32(block + 4), d * codes(0) + m, d * codes(16) + m)};
    } else if constexpr (type == TensorType::Q8_0) {
        const uint8_t* block = row + run * 34;
        const __m512 d = splat_half(block);
        const __m128i* bytes = (const __m128i*)(block + 2);
        return {narrow(d * bytes_to_float(_mm_loadu_si128(bytes)), d * bytes_to_float(_mm_loadu_si128(bytes + 1)))};
    } else if constexpr (type == TensorType::Q4_K || type == TensorType::Q5_K) {
        // The low nibbles of 32 bytes, then their high ones.
        constexpr bool five = type == TensorType::Q5_K;
        const uint8_t* block = row + run / 4 * (five ? 176 : 144);
        const int pair = int(run % 4);
        const __m256i bytes = _mm256_loadu_si256((const __m256i*)(block + (five ? 48 : 16) + pair * 32));
        const __m512i words = _mm512_cvtepu8_epi16(bytes), nibbles[2] = {words, _mm512_srli_epi16(words, 4)};
        const __m512 d = splat_half(block), least = splat_half(block + 2);
        Runs<type> out;
        unrolled<2>([&](auto i) {
            const ScaleAndMin s = k_scale(block + 4, 2 * pair + i);
            const __m512 step = d * _mm512_set1_ps(float(s.scale)), offset = least * _mm512_set1_ps(float(s.min));
            if constexpr (five) {
                const __m256i high = _mm256_loadu_si256((const __m256i*)(block + 16));
                const __mmask32 fifth = _mm256_test_epi8_mask(high, _mm256_set1_epi8(char(1 << (2 * pair + i))));
                out.v[i] = look_up(nibbles[i], fifth, step * codes(0) - offset, step * codes(16) - offset);
            } else {
                out.v[i] = look_up(nibbles[i], step * codes(0) - offset);
            }
        });
        return out;
    } else {
        static_assert(type == TensorType::Q6_K);
        // The low or the high nibbles of 64 bytes, and two bits more from 32 others, which a rotation puts above them.
        // Bits that cross from one byte to the next are masked away.
        const uint8_t* block = row + run / 4 * 210;
        const int half = int(run % 4) / 2, upper = int(run % 2);
        const __m512i low = _mm512_loadu_si512(block + half * 64);
        const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)(block + 128 + half * 32)));
        const __m512i turn = _mm512_sub_epi64(_mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), _mm512_set1_epi64(upper * 4));
        const __m512i four =
            _mm512_and_si512(_mm512_srl_epi16(low, _mm_cvtsi32_si128(upper * 4)), _mm512_set1_epi8(15));
        const __m512i two = _mm512_and_si512(_mm512_rolv_epi64(high, turn), _mm512_set1_epi8(48));
        alignas(64) int8_t code[2 * kRun];
        _mm512_store_si512(code, _mm512_sub_epi8(_mm512_or_si512(four, two), _mm512_set1_epi8(32)));
        const __m128i scales = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(int(load_u32(block + 192 + run % 4 * 4))));
        alignas(16) float step[4];
        _mm_store_ps(step, _mm_mul_ps(_mm_set1_ps(half_to_float(block + 208)), _mm_cvtepi32_ps(scales)));
        const auto sixteen = [&](int i) {
            return _mm512_set1_ps(step[i]) * bytes_to_float(_mm_load_si128((const __m128i*)(code + 16 * i)));
        };
        return {narrow(sixteen(0), sixteen(1)), narrow(sixteen(2), sixteen(3))};
    }
}

#else

template <TensorType type>
FB_INLINE Runs<type> bf16_runs(const uint8_t* row, int64_t at) {
    Runs<type> out;
    for (int i = 0; i < kRuns<type>; i++) {
        const Floats values = unpack_run<type>(row, kRuns<type> * at + i);
        uint16_t bits[kRun];
        for (int v = 0; v < kRunVectors; v++) store(bits + v * kLanes, values.v[v]);
        out.v[i] = load_raw<Run>(bits);
    }
    return out;
}

#endif

// The end of a row: `count` weights, and zeros in place of missing ones.
__attribute__((noinline)) inline void bf16_end(TensorType type, const uint8_t* row, int64_t first, int64_t count,
                                               int64_t width, void* out) {
    float values[2 * kRun] = {};
    uint16_t bits[2 * kRun];
    if (count > 0) decode_row(type, row, first, count, values);
    for (int i = 0; i < width; i++) bits[i] = f32_to_bf16(values[i]);
    std::memcpy(out, bits, size_t(width) * 2);
}

// The weights of a row from `first`, a multiple of their number, on. From `count` on they are zero.
template <TensorType type>
FB_INLINE Runs<type> bf16_part(const uint8_t* row, int64_t first, int64_t count) {
    constexpr int width = Runs<type>::kWeights;
    Runs<type> out;
    if (count >= width) out = bf16_runs<type>(row, first / width);
    else bf16_end(type, row, first, count, width, &out);
    return out;
}

}  // namespace fb::FB_ISA
