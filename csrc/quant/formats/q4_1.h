// d f16, m f16, nibbles[16]: weight = d * code + m
#pragma once
#include "quant/nibbles.h"

namespace fb::FB_SET::formats {

struct Q4_1 : NibbleBlocks<EvenLevels<0>, kOffset> {
    static constexpr int id = 3;
    static constexpr double centre = -7.5, spread = 4.61;
};

}  // namespace fb::FB_SET::formats
