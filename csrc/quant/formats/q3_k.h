// third bits[32], codes[64] in two bits, scales[12] in six, d f16: weight = d * (scale - 32) * (code - 4)
// Bits 2q, 2q + 1 of byte l of either half of the codes are weight 32 q + l of that half; the third bit of weight
// 32 i + l is bit i of byte l. The low four bits of scales 0..7 and 8..15 are the nibbles of the first eight bytes, the
// upper two of scale 4 q + k bits 2q, 2q + 1 of byte 8 + k.
#pragma once
#include "quant/level_blocks.h"

namespace fb::FB_SET::formats {

struct Q3_K : LevelBlocks<Q3_K> {
    static constexpr int id = 11, bytes = 110, parts = 16;
    static constexpr int first_level = -4, last_level = 3;
    static constexpr Field scale = {Number::f16, 108}, offset = kNoField;
    static constexpr double centre = 0, spread = 43.3;
    static constexpr float unit = 1;
    static constexpr bool has_codes = true;

    static FB_INLINE int level(const uint8_t* block, int j) {
        const int low = block[32 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
        return (low | (block[j % 32] >> (j / 32) & 1) << 2) - 4;
    }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        const auto none = at.index * 0, turn = at.index % 4 * 8;
        const auto low = at.index / 4 % 2 == 0 ? none + load_u32(block + 96) : none + load_u32(block + 100);
        const auto high = none + load_u32(block + 104);
        return ((low >> turn >> at.index / 8 * 4 & 15) | (high >> turn >> at.index / 4 * 2 & 3) << 4) - 32;
    }

#if defined(FB_ISA)
    static FB_INLINE Bytes levels(const uint8_t* block, int i) {
        const Bytes low = bits_under(3, bytes_at(block + 32 + i / 4 * 32), i % 4 * 2);
        return (low | bits_under(4, bytes_at(block), i - 2)) - 4;
    }
#endif
#if defined(__AVX512F__)
    template <int bias>
    static FB_INLINE __m512i byte_pair(const uint8_t* block, int i, const uint8_t*) {
        const __m512i two = rotated_twice(block + 32 + i / 4 * 32, i % 4 * -2, i % 4 * -2 - 2);
        return _mm512_and_si512(merged(3, two, rotated_twice(block, 2 - i, 1 - i)), _mm512_set1_epi8(7));
    }
#endif
};

}  // namespace fb::FB_SET::formats
