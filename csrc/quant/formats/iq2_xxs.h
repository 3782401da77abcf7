// d f16, then for each run of 32 weights four points[4] of IQ2_XXS's grid, eight weights each, and 32 bits: four times
// seven signs, and a scale of four bits: weight = d / 8 * (2 scale + 1) * level
#pragma once
#include "quant/lookup.h"

namespace fb::FB_SET::formats {

struct IQ2_XXS : LookupBlocks<IQ2_XXS> {
    static constexpr int id = 16, bytes = 66, parts = 8;
    static constexpr double spread = 53.2;
    static constexpr float unit = 0.125f;

    static FB_INLINE const auto& point(const uint8_t* block, int k) {
        return kIQ2_XXSGrid.points[block[2 + k / 4 * 8 + k % 4]];
    }
    static FB_INLINE const auto& mask(const uint8_t* block, int k) {
        return kEvenSigns.masks[load_u32(block + 6 + k / 4 * 8) >> k % 4 * 7 & 127];
    }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return (at.upper_words(block + 2) >> 28) * 2 + 1;
    }
};

}  // namespace fb::FB_SET::formats
