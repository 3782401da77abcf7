// Scalar decoding of stored weights: a stretch of one row, of any type, to float32.
//
// The formats' `decode` follows GGML's block layouts (little-endian). The functions here have internal linkage, because
// this header is compiled once per instruction set, and no two of those builds may share a symbol.
//
// The result does not depend on how the compiler contracts multiply-adds. A product of a half-precision scale (11
// significant bits), a sub-block scale (at most 7) and a code (at most 5) has at most 23 bits, as has a product of such
// a scale and a level of 8 bits. So it is exact in float32. Types with an offset then round once, in the addition.
#pragma once
#include "quant/formats.h"

namespace fb {

static inline void decode_block(TensorType type, const uint8_t* block, float* out) {
    with_type(type, [&](auto known) { FB_SET::Format<known()>::decode(block, out); });
}

// out[0, count) = weights [first, first + count) of the row whose first block is at `row`.
static inline void decode_row(TensorType type, const uint8_t* row, int64_t first, int64_t count, float* out) {
    const BlockShape shape = block_shape(type);
    const int64_t end = first + count;
    for (int64_t at = first; at < end;) {
        const int64_t start = at / shape.weights * shape.weights;  // first weight of the block that contains `at`
        const uint8_t* block = row + at / shape.weights * shape.bytes;
        if (at == start && end - at >= shape.weights) {
            decode_block(type, block, out);
            out += shape.weights;
            at += shape.weights;
        } else {
            float weights[256];
            decode_block(type, block, weights);
            const int64_t stop = end < start + shape.weights ? end : start + shape.weights;
            std::memcpy(out, weights + (at - start), size_t(stop - at) * sizeof(float));
            out += stop - at;
            at = stop;
        }
    }
}

}  // namespace fb
