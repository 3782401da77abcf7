// Unpacks stored weights directly to bf16, in row order. They are rounded once, to nearest even, from the exact value:
// bit-identical to a format's run in float32 followed by a conversion.
#pragma once
#include "simd/unpack.h"

namespace fb::FB_ISA {

// The stretch that is unpacked at once.
template <TensorType type>
using RunsOf = Runs<Format<type>::weights == 256 ? 2 : 1>;

template <TensorType type>
FB_INLINE RunsOf<type> bf16_runs(const uint8_t* row, int64_t i) {
#if defined(__AVX512BF16__)
    return Format<type>::bf16_runs(row, i);
#else
    RunsOf<type> out;
    constexpr int n = RunsOf<type>::kWeights / kRun;
    for (int j = 0; j < n; j++) {
        const Floats values = Format<type>::run(row, n * i + j);
        uint16_t bits[kRun];
        for (int v = 0; v < kRunVectors; v++) store(bits + v * kLanes, values.v[v]);
        out.v[j] = load_raw<Run>(bits);
    }
    return out;
#endif
}

// The end of a row: `count` weights, and zeros for missing ones.
__attribute__((noinline)) inline void bf16_end(TensorType type, const uint8_t* row, int64_t first, int64_t count,
                                               int64_t width, void* out) {
    float values[2 * kRun] = {};
    uint16_t bits[2 * kRun];
    if (count > 0) decode_row(type, row, first, count, values);
    for (int i = 0; i < width; i++) bits[i] = f32_to_bf16(values[i]);
    std::memcpy(out, bits, size_t(width) * 2);
}

// The weights of a row from `first`, a multiple of their number. They are zero from `count` on.
template <TensorType type>
FB_INLINE RunsOf<type> bf16_part(const uint8_t* row, int64_t first, int64_t count) {
    constexpr int width = RunsOf<type>::kWeights;
    RunsOf<type> out;
    if (count >= width) out = bf16_runs<type>(row, first / width);
    else bf16_end(type, row, first, count, width, &out);
    return out;
}

}  // namespace fb::FB_ISA
