// codes[64] in two bits, d f16: weight = d * (code - 1). Bits 2q, 2q + 1 of byte l of either half of the codes are
// weight 32 q + l of that half.
#pragma once
#include "quant/level_blocks.h"

namespace fb::FB_SET::formats {

struct TQ2_0 : LevelBlocks<TQ2_0> {
    static constexpr int id = 35, bytes = 66, parts = 1;
    static constexpr int first_level = -1, last_level = 1;
    static constexpr Field scale = {Number::f16, 64}, offset = kNoField;
    static constexpr double centre = 0, spread = 1.225;
    static constexpr float unit = 1;
    static constexpr bool has_codes = true;

    static FB_INLINE int level(const uint8_t* block, int j) {
        return (block[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3) - 1;
    }
    template <class Parts>
    static FB_INLINE uint32_t scales(const uint8_t*, const Parts&) {
        return 1;
    }

#if defined(FB_ISA)
    static FB_INLINE Bytes levels(const uint8_t* block, int i) {
        return bits_under(3, bytes_at(block + i / 4 * 32), i % 4 * 2) - 1;
    }
#endif
#if defined(__AVX512F__)
    template <int bias>
    static FB_INLINE __m512i byte_pair(const uint8_t* block, int i, const uint8_t*) {
        return _mm512_and_si512(rotated_twice(block + i / 4 * 32, i % 4 * -2, i % 4 * -2 - 2), _mm512_set1_epi8(3));
    }
#endif
};

}  // namespace fb::FB_SET::formats
