// d f16, points and signs u16[32], scales[8] of four bits each: weight = d / 8 * (2 scale + 1) * level. Nine bits
// select a point of IQ2_XS's grid, which is eight weights; the other seven are their signs. 16 weights share a scale.
#pragma once
#include "quant/lookup.h"

namespace fb::FB_SET::formats {

struct IQ2_XS : LookupBlocks<IQ2_XS> {
    static constexpr int id = 17, bytes = 74, parts = 16;
    static constexpr double spread = 56;
    static constexpr float unit = 0.125f;

    static FB_INLINE const auto& point(const uint8_t* block, int k) {
        return kIQ2_XSGrid.points[load_u16(block + 2 + k * 2) & 511];
    }
    static FB_INLINE const auto& mask(const uint8_t* block, int k) { return kEvenSigns.masks[block[3 + k * 2] >> 1]; }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return nibbles_at(block + 66, at.index) * 2 + 1;
    }
};

}  // namespace fb::FB_SET::formats
