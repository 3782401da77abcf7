// Blocks of 32 weights with four or five bits each: a scale d, optionally an offset m, optionally the fifth bits
// (uint32, bit i for weight i), and sixteen bytes of nibbles. Byte j of the nibbles holds weight j (low) and weight j +
// 16 (high).
//
//   weight = d * level(code) + m
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

// The parts of a block between its scale and its nibbles.
constexpr int kOffset = 1, kFifthBits = 2;

template <class Levels, int extras = 0, Number number = Number::f16>
struct NibbleBlocks {
    static constexpr bool shifted = extras & kOffset, five = extras & kFifthBits;
    static constexpr Field scale = {number, 0}, offset = shifted ? Field{Number::f16, 2} : kNoField;
    static constexpr int nibbles =
        size_of(number) + 2 * shifted + 4 * five;  // where the nibbles start and the fifth bits end
    static constexpr int weights = 32, bytes = nibbles + 16;
    static constexpr bool has_bytes = true;
    static constexpr int first_level = extreme_level<Levels>(five ? 32 : 16, false);
    static constexpr int last_level = extreme_level<Levels>(five ? 32 : 16, true);

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_number(number, block), m = shifted ? load_f16(block + offset.at) : 0;
        const uint32_t fifth = five ? load_u32(block + nibbles - 4) : 0;
        for (int j = 0; j < 32; ++j) {
            const int code = (block[nibbles + j % 16] >> (j / 16 * 4) & 15) | int(fifth >> j & 1) << 4;
            out[j] = d * float(Levels::at(code)) + m;
        }
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i * bytes;
        const float d = head<number>(block), m = shifted ? head_half(block + offset.at) : 0;
        if constexpr (!Levels::even && kLanes < 16) {  // too few lanes for a table look-up
            static_assert(!shifted && !five);
            const Floats levels = to_floats(nibble_bytes<Levels>(block + nibbles));
            return run_of([&](int v) { return levels.v[v] * d; });
        } else {
            const uint32_t fifth = five ? load_u32(block + nibbles - 4) : 0;
            return run_of([&](int v) {
                const UVec code = widen(block + nibbles + v * kLanes % 16) >> (v * kLanes / 16 * 4);
                if constexpr (five) return level<Levels>(code, fifth >> (v * kLanes), d, m);
                else return level<Levels>(code, d, m);
            });
        }
    }
#endif

#if defined(FB_ISA)
    static constexpr int kMinimumSign = 1;

    template <int bias>
    static FB_INLINE Bytes byte_codes(const uint8_t* block, int) {
        const Bytes codes = nibble_bytes<Raised<Levels, bias>>(block + nibbles);
        if constexpr (five) {
            static_assert(Levels::even);
            return codes + sixteens(load_u32(block + nibbles - 4));
        } else {
            return codes;
        }
    }

    // The scales and offsets of `count` blocks, one per lane.
    static FB_INLINE void numbers(const uint8_t* block, int count, Vec& scales, Vec& offsets) {
#if defined(__AVX512F__)
        const __m512i heads = heads_of(block, count);
        if constexpr (number == Number::e8m0) scales = e8m0_lanes((IVec)heads);
        else scales = (Vec)half_lanes(heads);
        if constexpr (shifted) offsets = (Vec)half_lanes(_mm512_srli_epi32(heads, 16));
#else
        scales = lane_numbers<number>(block, bytes, count);
        if constexpr (shifted) offsets = lane_numbers<Number::f16>(block + offset.at, bytes, count);
#endif
    }
#endif

#if defined(__AVX512F__)
    template <int bias>
    static FB_INLINE __m512i byte_pair(const uint8_t* one, int, const uint8_t* two) {
        const auto sixteen = [](const uint8_t* from) { return _mm_loadu_si128((const __m128i*)from); };
        const __m512i both =
            _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(sixteen(one + nibbles)), 0xff00, sixteen(two + nibbles));
        const __m512i four =
            _mm512_and_si512(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), _mm512_set1_epi8(15));
        if constexpr (Levels::even && Levels::at(0) + bias == 0) {
            if constexpr (!five) return four;
            const uint64_t fifth = load_u32(one + nibbles - 4) | uint64_t(load_u32(two + nibbles - 4)) << 32;
            return _mm512_mask_add_epi8(four, fifth, four, _mm512_set1_epi8(16));
        } else {
            static_assert(!five);
            const uint8_t* levels = kLevels<uint8_t, Raised<Levels, bias>, 0, 16>.values;
            return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)levels)), four);
        }
    }
#endif

#if defined(__AVX512BF16__)
    static FB_INLINE Runs<1> bf16_runs(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i * bytes;
        const __m512 d = _mm512_set1_ps(head<number>(block));
        const auto table = [&](__m512 levels) {
            if constexpr (shifted) return d * levels + splat_half(block + offset.at);
            else return d * levels;
        };
        const __m512i words = nibble_words(block + nibbles);
        if constexpr (five)
            return {look_up(words, load_u32(block + nibbles - 4), table(level_table<Levels>()),
                            table(level_table<Levels, 16>()))};
        else return {look_up(words, table(level_table<Levels>()))};
    }

    static constexpr bool has_codes = true;

    // Blocks [first, first + count) of a row, the first of which is at `block`.
    template <class Rows>
    static FB_INLINE void dot_group(const Rows& rows, const uint8_t* block, int64_t first, int count,
                                    typename Rows::Parts& parts) {
        const __m512i heads = heads_of(block, count);
        const __m512 scales = number == Number::e8m0 ? (__m512)e8m0_lanes((IVec)heads) : half_lanes(heads);
        if constexpr (shifted) rows.add_sums(half_lanes(_mm512_srli_epi32(heads, 16)), first / kGroup, parts);
        for (int turn = 0; turn < count; turn += 2 * Rows::kChains)
#pragma GCC unroll 4
            for (int chain = 0; chain < Rows::kChains; chain++) {
                const int i = turn + 2 * chain;
                if (i >= count) break;
                const uint8_t* one = block + i * bytes;
                const uint8_t* two = i + 1 < count ? one + bytes : one;  // multiplied by zeros if there is none
                const __m256i both =
                    _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)(one + nibbles))),
                                            _mm_loadu_si128((const __m128i*)(two + nibbles)), 1);
                const __m512i words = _mm512_cvtepu8_epi16(both);
                uint32_t a = 0, b = 0;
                if constexpr (five) a = load_u32(one + nibbles - 4), b = load_u32(two + nibbles - 4);
                const __m512i codes[2] = {
                    bf16_levels<Levels, five>(words, (a & 0xffff) | b << 16),
                    bf16_levels<Levels, five>(_mm512_srli_epi16(words, 4), a >> 16 | (b & 0xffff0000))};
                rows.add(codes, first + i, spread_lanes<2>(scales, i), chain, parts);
            }
    }
#endif

#if defined(__AVX512F__)
private:
    // The first bytes of each block of a group, one block per lane: the scale, then the offset or the bytes that
    // follow.
    static FB_INLINE __m512i heads_of(const uint8_t* block, int count) {
        if constexpr (five) {
            uint32_t heads[kGroup] = {};
            for (int i = 0; i < count; i++) heads[i] = load_u32(block + i * bytes);
            return _mm512_loadu_si512(heads);
        }
        // Blocks of four bits are so short that 64 bytes hold four heads. With the loop unrolled, the lane numbers are
        // constants, which Clang does not find by itself.
        const auto four = [&](int first) {
            const int size = std::clamp((count - first) * bytes, 0, 64);
            return _mm512_maskz_loadu_epi8(size ? ~uint64_t(0) >> (64 - size) : 0, block + first * bytes);
        };
        const auto eight = [&](int first) {
            if constexpr (bytes % 2) {  // 17: head i starts at byte i of the 4-byte word 4 i
                IVec from;
#pragma GCC unroll 32
                for (int i = 0; i < kLanes; i++) from[i] = i % 8 * 4;
                return _mm512_permutex2var_epi32(four(first), (__m512i)from, four(first + 4));
            } else {
                IHalves from;
#pragma GCC unroll 32
                for (int i = 0; i < 2 * kGroup; i++) from[i] = short(i / 2 % 4 * (bytes / 2) + i % 2 + i / 8 * 32);
                return _mm512_permutex2var_epi16(four(first), (__m512i)from, four(first + 4));
            }
        };
        const __m512i heads = _mm512_inserti64x4(eight(0), _mm512_castsi512_si256(eight(8)), 1);
        if constexpr (bytes % 2 == 0) return heads;
        static_assert(bytes == 17 || bytes % 2 == 0);
        IVec turn;
#pragma GCC unroll 32
        for (int i = 0; i < kLanes; i++) turn[i] = i % 4 * 8;
        return _mm512_srlv_epi32(heads, (__m512i)turn);
    }
#endif
};

}  // namespace fb::FB_SET::formats
