// d f16, m f16, fifth bits uint32, nibbles[16]: weight = d * code + m
#pragma once
#include "quant/nibbles.h"

namespace fb::FB_SET::formats {

struct Q5_1 : NibbleBlocks<EvenLevels<0>, kOffset | kFifthBits> {
    static constexpr int id = 7;
    static constexpr double centre = -15.5, spread = 9.23;
};

}  // namespace fb::FB_SET::formats
