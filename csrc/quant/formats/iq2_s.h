// d f16, points[32], signs[32], upper bits of the points[8], scales[8] of four bits each:
// weight = d / 8 * (2 scale + 1) * level. Ten bits select a point of IQ2_S's grid, which is eight weights. Bit j of
// their byte of signs belongs to weight j. 16 weights share a scale.
#pragma once
#include "quant/lookup.h"

namespace fb::FB_SET::formats {

struct IQ2_S : LookupBlocks<IQ2_S> {
    static constexpr int id = 22, bytes = 82, parts = 16;
    static constexpr double spread = 56.4;
    static constexpr float unit = 0.125f;

    static FB_INLINE const auto& point(const uint8_t* block, int k) {
        return kIQ2_SGrid.points[block[2 + k] | (block[66 + k / 4] >> k % 4 * 2 & 3) << 8];
    }
    static FB_INLINE const auto& mask(const uint8_t* block, int k) { return kSigns.masks[block[34 + k]]; }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return nibbles_at(block + 74, at.index) * 2 + 1;
    }
};

}  // namespace fb::FB_SET::formats
