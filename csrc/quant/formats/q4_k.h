// d f16, dmin f16, scales[12], nibbles[128]: weight = d * scale * code - dmin * min
#pragma once
#include "quant/k_blocks.h"

namespace fb::FB_SET::formats {

struct Q4_K : KBlocks</*five bits*/ false> {
    static constexpr int id = 12;
    // Codes and offset are multiplied by 6-bit numbers, whose mean is 31.5 and mean square 1323.
    static constexpr double centre = 7.5, spread = 256.7;
};

}  // namespace fb::FB_SET::formats
