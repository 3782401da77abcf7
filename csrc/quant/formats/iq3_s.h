// d f16, points[64], ninth bits of the points[8], signs[32], scales[4] in four bits each:
// weight = d * (2 scale + 1) * level. A point of IQ3_S's grid is four weights; 32 weights have one scale.
#pragma once
#include "quant/lookup.h"

namespace fb::FB_SET::formats {

struct IQ3_S : LookupBlocks<IQ3_S> {
    static constexpr int id = 21, bytes = 110, parts = 8;
    static constexpr double spread = 139.8;
    static constexpr float unit = 1;

    static FB_INLINE const auto& point(const uint8_t* block, int k) {
        return kIQ3_SGrid.points[block[2 + k] | (block[66 + k / 8] >> k % 8 & 1) << 8];
    }
    static FB_INLINE const auto& mask(const uint8_t* block, int k) { return kSigns.masks[block[74 + k]]; }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return ((at.index * 0 + load_u32(block + 106)) >> at.index * 4 & 15) * 2 + 1;
    }
};

}  // namespace fb::FB_SET::formats
