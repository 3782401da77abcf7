// d f16, dmin f16, scales[12], fifth bits[32], nibbles[128]: weight = d * scale * code - dmin * min
#pragma once
#include "quant/k_blocks.h"

namespace fb::FB_SET::formats {

struct Q5_K : KBlocks</*five bits*/ true> {
    static constexpr int id = 13;
    // Codes and offset are multiplied by 6-bit numbers, whose mean is 31.5 and mean square 1323.
    static constexpr double centre = 15.5, spread = 523.7;
};

}  // namespace fb::FB_SET::formats
