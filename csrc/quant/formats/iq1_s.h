// d f16, points[32], u16[8]: weight = d / 8 * (2 scale + 1) * (8 digit +- 1). Eleven bits select a point of IQ1_S's
// grid, eight digits of -1, 0 and 1. A run of 32 weights has four points. Its 16 bits hold their upper bits, three
// each, a scale of three bits, and the sign of the 1 that is added to all its digits.
#pragma once
#include "quant/lookup.h"

namespace fb::FB_SET::formats {

struct IQ1_S : LevelBlocks<IQ1_S> {
    static constexpr int id = 19, bytes = 50, parts = 8;
    static constexpr bool has_bytes = false;
    static constexpr Field scale = {Number::f16, 0}, offset = kNoField;
    static constexpr double centre = 0, spread = 7.21;
    static constexpr float unit = 0.125f;

    static FB_INLINE int head_of(const uint8_t* block, int i) { return load_u16(block + 34 + i * 2); }
    // The k-th eight weights of a block.
    static FB_INLINE const auto& point(const uint8_t* block, int k) {
        return kIQ1_SGrid.points[block[2 + k] | (head_of(block, k / 4) >> k % 4 * 3 & 7) << 8];
    }
    static FB_INLINE int shift(const uint8_t* block, int i) { return head_of(block, i) & 0x8000 ? -1 : 1; }
    static FB_INLINE int level(const uint8_t* block, int j) {
        return point(block, j / 8).at(j % 8) + shift(block, j / 32);
    }
    template <class Parts>
    static FB_INLINE auto scales(const uint8_t* block, const Parts& at) {
        return (at.halves(block + 34) >> 12 & 7) * 2 + 1;
    }
#if defined(FB_ISA)
    static FB_INLINE Floats levels(const uint8_t* block, int i) {
        const auto points = [&](int k) -> auto& { return point(block, i * 4 + k); };
        return run_of([&](int v) { return to_float(lanes_of(points, v) + shift(block, i)); });
    }
#endif
};

}  // namespace fb::FB_SET::formats
