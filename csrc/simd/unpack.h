// Unpacking stretches of stored rows, whatever their type, to float32.
#pragma once
#include "core/matrix.h"
#include "quant/decode.h"
#include "quant/vectors.h"

namespace fb::FB_ISA {

// Unpacks weights [first, first + count) of a row. Whole runs use registers, the rest the scalar decoder.
template <TensorType type>
FB_INLINE void unpack(const uint8_t* row, int64_t first, int64_t count, float* out) {
    int64_t at = 0;
    if (first % kRun == 0)
        for (; at + kRun <= count; at += kRun) {
            const Floats run = Format<type>::run(row, (first + at) / kRun);
            __builtin_memcpy(out + at, &run, sizeof run);
        }
    if (at < count) decode_row(type, row, first + at, count - at, out + at);
}

}  // namespace fb::FB_ISA
