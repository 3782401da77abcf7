// low nibbles[128], high bit pairs[64], scales[16] int8, d f16: weight = d * scale * (code - 32), sub-blocks of 16.
// Each half (128 weights) is four runs of 32: runs 0 and 1 are the low nibbles of its 64 bytes, runs 2 and 3 the high
// ones; the two upper bits of run q are bits 2q, 2q + 1 of the half's 32 bytes of pairs.
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

struct Q6_K {
    using Levels = EvenLevels<-32>;
    static constexpr int id = 14, weights = 256, bytes = 210;
    static constexpr Field scale = {Number::f16, 208}, offset = kNoField;
    static constexpr bool has_bytes = true;
    static constexpr int first_level = -32, last_level = 31, parts = 16;
    static constexpr double centre = 0, spread = 1365.7;  // the mean square of an 8-bit scale is 5461.5

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_f16(block + 208);
        for (int half = 0; half < 2; ++half) {
            const uint8_t *low = block + half * 64, *high = block + 128 + half * 32, *scales = block + 192 + half * 8;
            for (int run = 0; run < 4; ++run) {
                for (int l = 0; l < 32; ++l) {
                    const int nibble = low[run % 2 * 32 + l] >> (run / 2 * 4) & 15;
                    const int code = nibble | (high[l] >> (run * 2) & 3) << 4;
                    const float step = d * float(int8_t(scales[run * 2 + l / 16]));
                    out[half * 128 + run * 32 + l] = step * float(Levels::at(code));
                }
            }
        }
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i / 8 * bytes;
        const int half = int(i % 8) / 4, quarter = int(i % 4);
        Bytes low, high;
        __builtin_memcpy(&low, block + half * 64 + quarter % 2 * 32, kRun);
        __builtin_memcpy(&high, block + 128 + half * 32, kRun);
        const Bytes code = (low >> uint8_t(quarter / 2 * 4) & 15) | (high >> uint8_t(quarter * 2) & 3) << 4;
        int8_t codes[kRun];
        __builtin_memcpy(codes, &code, kRun);
        const float d = half_to_float(block + 208);
        const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192 + half * 8 + quarter * 2);
        const float steps[2] = {d * float(scales[0]), d * float(scales[1])};
        return run_of([&](int v) {
            const float step = steps[v * kLanes / 16];
            return to_float(widen(codes + v * kLanes)) * step - 32 * step;
        });
    }
#endif

#if defined(FB_ISA)
    template <int bias>
    static FB_INLINE Bytes byte_codes(const uint8_t* block, int i) {
        static_assert(bias == 32);
        const int half = i / 4, quarter = i % 4;
        const Bytes four = bits_under(15, bytes_at(block + half * 64 + quarter % 2 * 32), quarter / 2 * 4);
        return four | bits_under(48, bytes_at(block + 128 + half * 32), quarter * 2 - 4);
    }
    template <int vectors>
    static FB_INLINE void numbers(const uint8_t* block, Vec (&scales)[vectors], Vec (&)[vectors]) {
        const float d = half_to_float(block + 208);
        for (int v = 0; v < vectors; v++)
            scales[v] = to_float(widen(reinterpret_cast<const int8_t*>(block + 192 + v * kLanes))) * d;
    }
#endif

#if defined(__AVX512F__)
    template <int bias>
    static FB_INLINE __m512i byte_pair(const uint8_t* block, int i, const uint8_t*) {
        const int half = i / 4, quarter = i % 4;
        const __m512i low = _mm512_loadu_si512(block + half * 64), four = quarter ? _mm512_srli_epi16(low, 4) : low;
        const __m512i two = rotated_twice(block + 128 + half * 32, 4 - 2 * quarter, 2 - 2 * quarter);
        return _mm512_and_si512(merged(15, four, two), _mm512_set1_epi8(63));
    }
#endif

#if defined(__AVX512BF16__)
    static FB_INLINE Runs<2> bf16_runs(const uint8_t* row, int64_t i) {
        // The low or the high nibbles of 64 bytes, and two more bits from 32 others, which a rotation puts above them.
        // Bits that cross into the next byte are masked out.
        const uint8_t* block = row + i / 4 * bytes;
        const int half = int(i % 4) / 2, upper = int(i % 2);
        const __m512i low = _mm512_loadu_si512(block + half * 64);
        const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)(block + 128 + half * 32)));
        const __m512i turn = _mm512_sub_epi64(_mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), _mm512_set1_epi64(upper * 4));
        const __m512i four =
            _mm512_and_si512(_mm512_srl_epi16(low, _mm_cvtsi32_si128(upper * 4)), _mm512_set1_epi8(15));
        const __m512i two = _mm512_and_si512(_mm512_rolv_epi64(high, turn), _mm512_set1_epi8(48));
        alignas(64) int8_t code[2 * kRun];
        _mm512_store_si512(code, _mm512_sub_epi8(_mm512_or_si512(four, two), _mm512_set1_epi8(32)));
        const __m128i scales = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(int(load_u32(block + 192 + i % 4 * 4))));
        alignas(16) float step[4];
        _mm_store_ps(step, _mm_mul_ps(_mm_set1_ps(half_to_float(block + 208)), _mm_cvtepi32_ps(scales)));
        const auto sixteen = [&](int part) {
            return _mm512_set1_ps(step[part]) * bytes_to_float(_mm_load_si128((const __m128i*)(code + 16 * part)));
        };
        return {narrow(sixteen(0), sixteen(1)), narrow(sixteen(2), sixteen(3))};
    }

    static constexpr bool has_codes = true;

    // Block `index` of a row.
    template <class Rows>
    static FB_INLINE void dot_block(const Rows& rows, const uint8_t* block, int64_t index,
                                    typename Rows::Parts& parts) {
        const __m512 scales =
            bytes_to_float(_mm_loadu_si128((const __m128i*)(block + 192))) * _mm512_set1_ps(half_to_float(block + 208));
        const __m512i low_levels = (__m512i)narrow(level_table<Levels>(), level_table<Levels, 16>());
        const __m512i high_levels = (__m512i)narrow(level_table<Levels, 32>(), level_table<Levels, 48>());
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const auto words = [](const uint8_t* from) {
                return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)from));
            };
            const __m512i low[2] = {words(block + half * 64), words(block + half * 64 + 32)};
            const __m512i high = words(block + 128 + half * 32);
#pragma GCC unroll 4
            for (int quarter = 0; quarter < 4; quarter++) {
                const __m512i four = _mm512_srli_epi16(low[quarter % 2], quarter / 2 * 4);
                const __m512i two =
                    quarter < 2 ? _mm512_slli_epi16(high, 4 - 2 * quarter) : _mm512_srli_epi16(high, 2 * quarter - 4);
                // four's bits where the mask is set, two's elsewhere; the look-up reads six of them
                const __m512i six = _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), four, two, 0xca);
                const __m512i picked[1] = {_mm512_permutex2var_epi16(low_levels, six, high_levels)};
                const int run = half * 4 + quarter;
                rows.add(picked, index * 8 + run, spread_lanes<2>(scales, 2 * run), quarter, parts);
            }
        }
    }
#endif
};

}  // namespace fb::FB_SET::formats
