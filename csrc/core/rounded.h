// Products of a few rows of x with x rounded to eight bits: the rounding, which is the same on every instruction set.
//
// A row of x is rounded in blocks of 32, as in llama.cpp's Q8_0, but with a scale in float32:
//
//   scale = max |x| / 127;   inverse = 127 / max |x|;   code = nearest(x * inverse), halves to even;   x -> scale *
//   code
//
// A block with a NaN or an infinity gets a scale that is not finite, and one that is nearly zero becomes zero. Sums of
// products of codes are exact integers.
#pragma once
#include "quant/formats.h"

namespace fb {

// More rows than these are a prompt, which is multiplied exactly.
constexpr int64_t kRoundedRows = 16;
constexpr int kRoundedBlock = 32;

struct Rounding {
    float scale, inverse;
    FB_INLINE explicit Rounding(float most) : scale(most / 127), inverse(most > 0x1p-100f ? 127 / most : 0) {}
};

// Whether stored weights of this type have integer levels of eight bits, which are multiplied directly.
FB_INLINE bool has_byte_codes(TensorType type) {
    bool found = false;
    with_type(type, [&](auto known) { found = FB_SET::Format<known()>::has_bytes; });
    return found;
}
}  // namespace fb
