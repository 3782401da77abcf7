// d f16, upper bits of the scales u16, lower nibbles[4], nibbles[128]: weight = d * (scale - 32) * level(code), with
// IQ4_NL's levels. A run of 32 weights has one scale, and sixteen bytes: the low nibbles, then the high ones.
#pragma once
#include "quant/formats/iq4_nl.h"
#include "quant/level_blocks.h"

namespace fb::FB_SET::formats {

struct IQ4_XS : LevelBlocks<IQ4_XS> {
    static constexpr int id = 23, bytes = 136, parts = 8;
    static constexpr int first_level = -127, last_level = 113;
    static constexpr Field scale = {Number::f16, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 1246;
    static constexpr float unit = 1;
    static constexpr bool has_codes = true;

    static FB_INLINE int level(const uint8_t* block, int j) {
        return IQ4_NLLevels::at(block[8 + j / 32 * 16 + j % 16] >> (j % 32 / 16 * 4) & 15);
    }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        const auto none = at.index * 0;
        const auto low = none + load_u32(block + 4), high = none + load_u16(block + 2);
        return ((low >> at.index * 4 & 15) | (high >> at.index * 2 & 3) << 4) - 32;
    }

#if defined(FB_ISA)
    static FB_INLINE Bytes levels(const uint8_t* block, int i) {
        return nibble_bytes<IQ4_NLLevels>(block + 8 + i * 16);
    }
#endif
#if defined(__AVX512BF16__)
    static FB_INLINE __m512i codes(const uint8_t* block, int i) {
        return bf16_levels<IQ4_NLLevels, false>(nibble_words(block + 8 + i * 16), 0);
    }
#endif
};

}  // namespace fb::FB_SET::formats
