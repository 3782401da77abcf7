// d f16, nibbles[16]: weight = d * (code - 8)
#pragma once
#include "quant/nibbles.h"

namespace fb::FB_SET::formats {

struct Q4_0 : NibbleBlocks<EvenLevels<-8>> {
    static constexpr int id = 2;
    static constexpr double centre = 0, spread = 4.64;
};

}  // namespace fb::FB_SET::formats
