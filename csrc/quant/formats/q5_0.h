// d f16, fifth bits uint32, nibbles[16]: weight = d * (code - 16)
#pragma once
#include "quant/nibbles.h"

namespace fb::FB_SET::formats {

struct Q5_0 : NibbleBlocks<EvenLevels<-16>, kFifthBits> {
    static constexpr int id = 6;
    static constexpr double centre = 0, spread = 9.25;
};

}  // namespace fb::FB_SET::formats
