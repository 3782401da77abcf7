// d f16, nibbles[16]: weight = d * level(code), with sixteen levels that are closer together near zero
#pragma once
#include "quant/nibbles.h"

namespace fb::FB_SET::formats {

struct IQ4_NLLevels {
    static constexpr bool even = false;
    static FB_INLINE constexpr int at(int code) {
        constexpr int levels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
        return levels[code];
    }
};

struct IQ4_NL : NibbleBlocks<IQ4_NLLevels> {
    static constexpr int id = 20;
    static constexpr double centre = 0, spread = 67.44;
};

}  // namespace fb::FB_SET::formats
