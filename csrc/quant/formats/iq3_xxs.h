// d f16, points[64], then 32 bits for each run of 32 weights: four times seven signs, and a scale of four bits:
// weight = d / 4 * (2 scale + 1) * level. A point of IQ3_XXS's grid is four weights.
#pragma once
#include "quant/lookup.h"

namespace fb::FB_SET::formats {

struct IQ3_XXS : LookupBlocks<IQ3_XXS> {
    static constexpr int id = 18, bytes = 98, parts = 8;
    static constexpr double spread = 142.8;
    static constexpr float unit = 0.25f;

    static FB_INLINE const auto& point(const uint8_t* block, int k) { return kIQ3_XXSGrid.points[block[2 + k]]; }
    static FB_INLINE const auto& mask(const uint8_t* block, int k) {
        return kEvenSigns.masks[load_u32(block + 66 + k / 4 * 4) >> k % 4 * 7 & 127];
    }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return (at.words(block + 66) >> 28) * 2 + 1;
    }
};

}  // namespace fb::FB_SET::formats
