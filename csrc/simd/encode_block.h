// Encodes 32 numbers as a block of eight or four bits.
#pragma once
#include "quant/formats.h"
#include "quant/vectors.h"

namespace fb::FB_ISA {

// Encodes 32 numbers as an 8-bit block. Unsigned floats are ordered like their bits, and NaN is the largest.
template <class X>
FB_INLINE void encode_block(const X* x, uint8_t* block) {
    using Codes = int8_t __attribute__((vector_size(kLanes)));
    const Floats values = run_of([&](int v) { return load(x + v * kLanes); });
    IVec sizes{};
    for (const Vec& v : values.v) {
        const IVec size = (IVec)v & 0x7fffffff;
        sizes = size > sizes ? size : sizes;
    }
    int32_t bits = 0;
    for (int i = 0; i < kLanes; i++) bits = std::max(bits, sizes[i]);
    float most;
    __builtin_memcpy(&most, &bits, sizeof most);
    const uint16_t half = f16_above(most / 127);
    __builtin_memcpy(block, &half, sizeof half);
    const float scale = half_to_float(block);
    const float inverse = scale > 0 && scale <= 65504 ? 1 / scale : 0;
    for (int v = 0; v < kRunVectors; v++) {
        const Codes codes = __builtin_convertvector(nearest(values.v[v] * inverse), Codes);
        __builtin_memcpy(block + 2 + v * kLanes, &codes, sizeof codes);
    }
}

// Encodes 32 numbers as a block of Q4_0, as the reference does. The number of the largest magnitude has code 0.
FB_INLINE void encode_nibbles(const float* x, uint8_t* block) {
    float largest = 0;
    for (int j = 0; j < kRun; j++) largest = std::fabs(x[j]) > std::fabs(largest) ? x[j] : largest;
    const float scale = largest / -8, inverse = scale != 0 ? 1 / scale : 0;
    const uint16_t half = f16_nearest(scale);
    __builtin_memcpy(block, &half, sizeof half);
    const double factor = inverse;  // in double, products are exact, so a fused addition rounds like any other
    const auto code = [&](int j) { return std::clamp(int(x[j] * factor + 8.5), 0, 15); };
    for (int j = 0; j < kRun / 2; j++) block[2 + j] = uint8_t(code(j) | code(j + kRun / 2) << 4);
}

}  // namespace fb::FB_ISA
