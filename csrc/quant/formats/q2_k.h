// scales and minima[16] of four bits each, codes[64] of two, d f16, dmin f16: weight = d * scale * code - dmin *
// minimum. Bits 2q, 2q + 1 of byte l of either half of the codes are weight 32 q + l of that half.
#pragma once
#include "quant/level_blocks.h"

namespace fb::FB_SET::formats {

struct Q2_K : LevelBlocks<Q2_K> {
    static constexpr int id = 10, bytes = 84, parts = 16;
    static constexpr int first_level = 0, last_level = 3;
    static constexpr Field scale = {Number::f16, 80}, offset = {Number::f16, 82};
    static constexpr double centre = 1.5, spread = 13.88;
    static constexpr float unit = 1;
    static constexpr bool has_codes = true;

    static FB_INLINE int level(const uint8_t* block, int j) {
        return block[16 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
    }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return at.bytes(block) & 15;
    }
    template <class Parts>
    static FB_INLINE auto minima(const uint8_t* block, const Parts& at) {
        return at.bytes(block) >> 4;
    }

#if defined(FB_ISA)
    static FB_INLINE Bytes levels(const uint8_t* block, int i) {
        return bits_under(3, bytes_at(block + 16 + i / 4 * 32), i % 4 * 2);
    }
#endif
#if defined(__AVX512F__)
    template <int bias>
    static FB_INLINE __m512i byte_pair(const uint8_t* block, int i, const uint8_t*) {
        return _mm512_and_si512(rotated_twice(block + 16 + i / 4 * 32, i % 4 * -2, i % 4 * -2 - 2),
                                _mm512_set1_epi8(3));
    }
#endif
};

}  // namespace fb::FB_SET::formats
