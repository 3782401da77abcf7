// d e8m0 (a power of two), nibbles[16]: weight = d * level(code). The codes are OCP's e2m1 (a sign, two bits of
// exponent, one of fraction), with doubled levels and a halved scale.
#pragma once
#include "quant/nibbles.h"

namespace fb::FB_SET::formats {

struct MXFP4Levels {
    static constexpr bool even = false;
    static FB_INLINE constexpr int at(int code) {
        constexpr int sizes[] = {0, 1, 2, 3, 4, 6, 8, 12};
        return code < 8 ? sizes[code] : -sizes[code - 8];
    }
};

struct MXFP4 : NibbleBlocks<MXFP4Levels, 0, Number::e8m0> {
    static constexpr int id = 39;
    static constexpr double centre = 0, spread = 5.852;
};

}  // namespace fb::FB_SET::formats
