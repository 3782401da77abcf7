// Blocks of 256 weights in eight sub-blocks of 32, with four or five bits each: d, dmin (f16), scales[12], optionally
// the fifth bits[32] (bit `sub` of byte l), nibbles[128]. Byte 32 c + l of the nibbles holds weight 64 c + l (low) and
// weight 64 c + 32 + l (high).
//
//   weight = d * scale(sub) * code - dmin * min(sub)
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

template <bool five>
struct KBlocks {
    using Levels = EvenLevels<0>;
    static constexpr Field scale = {Number::f16, 0}, offset = {Number::f16, 2};
    static constexpr int high = 16, nibbles = five ? 48 : 16;
    static constexpr int weights = 256, bytes = nibbles + 128;
    static constexpr bool has_bytes = true;
    static constexpr int first_level = 0, last_level = five ? 31 : 15;
    static constexpr int parts = 8;  // parts with their own scales and minima

    struct ScaleAndMin {
        int scale, min;
    };

    // Returns the 6-bit scale and minimum of sub-block j (0..7) from their 12 packed bytes. The first four pairs are
    // the low six bits of bytes j and j + 4. The others have four bits in bytes 8..11 and two in the top bits of the
    // first eight.
    static FB_INLINE ScaleAndMin scale_of(const uint8_t* packed, int j) {
        if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
        return {(packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4};
    }

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_f16(block), dmin = load_f16(block + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const ScaleAndMin s = scale_of(block + 4, sub);
            const float step = d * float(s.scale), least = dmin * float(s.min);
            for (int l = 0; l < 32; ++l) {
                const int low = block[nibbles + sub / 2 * 32 + l] >> (sub % 2 * 4) & 15;
                const int code = five ? low | (block[high + l] >> sub & 1) << 4 : low;
                out[sub * 32 + l] = step * float(code) - least;
            }
        }
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i / 8 * bytes;
        const int sub = int(i % 8);
        const ScaleAndMin s = scale_of(block + 4, sub);
        const float step = head_half(block) * float(s.scale), least = -(head_half(block + 2) * float(s.min));
        const uint8_t* codes = block + nibbles + sub / 2 * 32;
        const uint32_t fifth = five ? bits_of(block + high, sub) : 0;
        return run_of([&](int v) {
            const UVec code = widen(codes + v * kLanes) >> (sub % 2 * 4);
            if constexpr (five) return level<Levels>(code, fifth >> (v * kLanes), step, least);
            else return level<Levels>(code, step, least);
        });
    }
#endif

#if defined(FB_ISA)
    static constexpr int kMinimumSign = -1;

    template <int bias>
    static FB_INLINE Bytes byte_codes(const uint8_t* block, int i) {
        static_assert(bias == 0);
        const Bytes four = bits_under(15, bytes_at(block + nibbles + i / 2 * 32), i % 2 * 4);
        if constexpr (five) return four | bits_under(16, bytes_at(block + high), i - 4);
        else return four;
    }

    template <int vectors>
    static FB_INLINE void numbers(const uint8_t* block, Vec (&scales)[vectors], Vec (&minima)[vectors]) {
        const Sixes sixes = sixes_of(block + 4);
        const float d = head_half(block), dmin = head_half(block + 2);
#if defined(__AVX2__)
        static_assert(vectors == 1);
        scales[0] = to_float(widen((__m128i)sixes)) * d;
        minima[0] = to_float(widen(_mm_srli_si128((__m128i)sixes, 8))) * dmin;
#else
        const auto* bytes = reinterpret_cast<const uint8_t*>(&sixes);
        for (int v = 0; v < vectors; v++) {
            scales[v] = to_float(widen(bytes + v * kLanes)) * d;
            minima[v] = to_float(widen(bytes + 8 + v * kLanes)) * dmin;
        }
#endif
    }

private:
    // The eight scales, then the eight minima. The file has four of each in the first eight bytes; the low bits of the
    // other four in the last four bytes, and their high bits in the top bits of the first eight.
    using Sixes = uint32_t __attribute__((vector_size(16)));
    static FB_INLINE Sixes sixes_of(const uint8_t* packed) {
        const uint32_t a = load_u32(packed), b = load_u32(packed + 4), c = load_u32(packed + 8);
        const Sixes sixes = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                             (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
        return sixes;
    }

public:
#endif

#if defined(__AVX512F__)
    template <int bias>
    static FB_INLINE __m512i byte_pair(const uint8_t* block, int i, const uint8_t*) {
        const __m512i four = rotated_twice(block + nibbles + i / 2 * 32, 0, -4);
        if constexpr (!five) return _mm512_and_si512(four, _mm512_set1_epi8(15));
        return _mm512_and_si512(merged(15, four, rotated_twice(block + high, 4 - i, 3 - i)), _mm512_set1_epi8(31));
    }
#endif

#if defined(__AVX512BF16__)
    static FB_INLINE Runs<2> bf16_runs(const uint8_t* row, int64_t i) {
        // The low nibbles of 32 bytes, then their high ones.
        const uint8_t* block = row + i / 4 * bytes;
        const int pair = int(i % 4);
        const __m512i low = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(block + nibbles + pair * 32)));
        const __m512i words[2] = {low, _mm512_srli_epi16(low, 4)};
        const __m512 d = splat_half(block), dmin = splat_half(block + 2);
        Runs<2> out;
        unrolled<2>([&](auto half) {
            const ScaleAndMin s = scale_of(block + 4, 2 * pair + half);
            const __m512 step = d * _mm512_set1_ps(float(s.scale)), least = dmin * _mm512_set1_ps(float(s.min));
            const auto table = [&](__m512 levels) { return step * levels - least; };
            if constexpr (five) {
                const __m256i fifths = _mm256_loadu_si256((const __m256i*)(block + high));
                const __mmask32 fifth = _mm256_test_epi8_mask(fifths, _mm256_set1_epi8(char(1 << (2 * pair + half))));
                out.v[half] =
                    look_up(words[half], fifth, table(level_table<Levels>()), table(level_table<Levels, 16>()));
            } else {
                out.v[half] = look_up(words[half], table(level_table<Levels>()));
            }
        });
        return out;
    }

    static constexpr bool has_codes = true;

    // Block `index` of a row.
    template <class Rows>
    static FB_INLINE void dot_block(const Rows& rows, const uint8_t* block, int64_t index,
                                    typename Rows::Parts& parts) {
        const Sixes sixes = sixes_of(block + 4);
        const __m512 heads = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(int(load_u32(block)))));
        const __m512 scales = (__m512)to_float(widen((__m128i)sixes)) * spread_lanes<2>(heads, 0);
        rows.add_sums(scales, index, parts);
        const __m256i fifths = _mm256_loadu_si256((const __m256i*)(block + high));
#pragma GCC unroll 4
        for (int sub = 0; sub < 8; sub += 2) {
            const __m256i pair = _mm256_loadu_si256((const __m256i*)(block + nibbles + sub / 2 * 32));
            const __m512i words = _mm512_cvtepu8_epi16(pair);
            const auto fifth = [&](int which) {
                return five ? _mm256_test_epi8_mask(fifths, _mm256_set1_epi8(char(1 << which))) : __mmask32(0);
            };
            const __m512i even[1] = {bf16_levels<Levels, five>(words, fifth(sub))};
            const __m512i odd[1] = {bf16_levels<Levels, five>(_mm512_srli_epi16(words, 4), fifth(sub + 1))};
            rows.add(even, index * 8 + sub, spread_lanes<1>(scales, sub), sub % Rows::kChains, parts);
            rows.add(odd, index * 8 + sub + 1, spread_lanes<1>(scales, sub + 1), (sub + 1) % Rows::kChains, parts);
        }
    }
#endif
};

}  // namespace fb::FB_SET::formats
