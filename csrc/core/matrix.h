// Handles of stored weights.
#pragma once
#include "quant/formats.h"

namespace fb {

// A stored weight W (rows = out_features, cols = in_features), or a rectangle of one: rows [row0, row0 + rows) and
// columns [col0, col0 + cols) of the stored matrix. col0 is a multiple of the type's block.
struct Matrix {
    const uint8_t* data = nullptr;  // first byte of the stored row 0, column 0
    TensorType type = TensorType::F32;
    int64_t row_bytes = 0;
    int64_t row0 = 0, col0 = 0, rows = 0, cols = 0;

    FB_INLINE const uint8_t* row(int64_t r) const {
        const BlockShape b = block_shape(type);
        return data + (row0 + r) * row_bytes + col0 / b.weights * b.bytes;
    }
};

}  // namespace fb
