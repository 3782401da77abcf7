// Scalar decoding of stored weights: one stretch of one row, any type, to float32.
//
// Written from the facts of the formats (GGML's block layouts, little-endian). Every function has internal linkage:
// this header is compiled once per instruction set, and no two of those builds may share a symbol.
//
// The result is independent of how the compiler contracts multiply-adds. A product of a half-precision scale
// (11 significant bits), a sub-block scale (at most 7) and a code (at most 5) has at most 23 bits, so it is exact in
// float32; types with an offset then round once, in the addition.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/types.h"

namespace fb {

static inline uint16_t load_u16(const uint8_t* bytes) { return uint16_t(bytes[0] | bytes[1] << 8); }

static inline uint32_t load_u32(const uint8_t* bytes) {
    return uint32_t(load_u16(bytes)) | uint32_t(load_u16(bytes + 2)) << 16;
}

// IEEE half precision to single, exactly: subnormals, signed zeros, infinities and NaN payloads included.
static inline float f16_to_f32(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 0x1f;
    const uint32_t fraction = half & 0x3ff;
    uint32_t bits;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float32
        const float magnitude = float(fraction) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &magnitude, 4);
        bits |= sign;
    } else if (exponent == 31) {  // infinity or NaN
        bits = sign | 0x7f800000u | fraction << 13;
    } else {
        bits = sign | (exponent + 127 - 15) << 23 | fraction << 13;
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline float load_f16(const uint8_t* bytes) { return f16_to_f32(load_u16(bytes)); }

static inline float load_f32(const uint8_t* bytes) {
    const uint32_t bits = load_u32(bytes);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Blocks of 32 weights. Byte j of the nibbles holds weight j (low) and weight j + 16 (high).

// d, nibbles[16]: weight = d * (code - 8)
static inline void decode_q4_0(const uint8_t* block, float* out) {
    const float d = load_f16(block);
    for (int j = 0; j < 16; ++j) {
        out[j] = d * float((block[2 + j] & 15) - 8);
        out[j + 16] = d * float((block[2 + j] >> 4) - 8);
    }
}

// d, m, nibbles[16]: weight = d * code + m
static inline void decode_q4_1(const uint8_t* block, float* out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    for (int j = 0; j < 16; ++j) {
        out[j] = d * float(block[4 + j] & 15) + m;
        out[j + 16] = d * float(block[4 + j] >> 4) + m;
    }
}

// d, fifth bits (uint32, bit i for weight i), nibbles[16]: weight = d * (code - 16)
static inline void decode_q5_0(const uint8_t* block, float* out) {
    const float d = load_f16(block);
    const uint32_t high = load_u32(block + 2);
    for (int j = 0; j < 16; ++j) {
        const int low = (block[6 + j] & 15) | int(high >> j & 1) << 4;
        const int upper = (block[6 + j] >> 4) | int(high >> (j + 16) & 1) << 4;
        out[j] = d * float(low - 16);
        out[j + 16] = d * float(upper - 16);
    }
}

// d, m, fifth bits, nibbles[16]: weight = d * code + m
static inline void decode_q5_1(const uint8_t* block, float* out) {
    const float d = load_f16(block), m = load_f16(block + 2);
    const uint32_t high = load_u32(block + 4);
    for (int j = 0; j < 16; ++j) {
        const int low = (block[8 + j] & 15) | int(high >> j & 1) << 4;
        const int upper = (block[8 + j] >> 4) | int(high >> (j + 16) & 1) << 4;
        out[j] = d * float(low) + m;
        out[j + 16] = d * float(upper) + m;
    }
}

// d, int8 codes[32]: weight = d * code
static inline void decode_q8_0(const uint8_t* block, float* out) {
    const float d = load_f16(block);
    for (int j = 0; j < 32; ++j) out[j] = d * float(int8_t(block[2 + j]));
}

// Blocks of 256 weights.

struct ScaleAndMin {
    int scale, min;
};

// The 6-bit scale and minimum of sub-block j (0..7) of Q4_K and Q5_K, from their 12 packed bytes. The first four
// pairs are the low six bits of bytes j and j + 4; the others have four bits in bytes 8..11 and two in the tops.
FB_INLINE ScaleAndMin k_scale(const uint8_t* packed, int j) {
    if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
    return {(packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4};
}

// d, dmin, scales[12], nibbles[128]: weight = d * scale * code - dmin * min, sub-blocks of 32.
// Byte 32 c + l of the nibbles holds weight 64 c + l (low) and weight 64 c + 32 + l (high).
static inline void decode_q4_k(const uint8_t* block, float* out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const uint8_t *scales = block + 4, *nibbles = block + 16;
    for (int sub = 0; sub < 8; ++sub) {
        const ScaleAndMin s = k_scale(scales, sub);
        const float step = d * float(s.scale), offset = dmin * float(s.min);
        for (int l = 0; l < 32; ++l) {
            const int code = nibbles[sub / 2 * 32 + l] >> (sub % 2 * 4) & 15;
            out[sub * 32 + l] = step * float(code) - offset;
        }
    }
}

// d, dmin, scales[12], fifth bits[32] (bit `sub` of byte l), nibbles[128]: as Q4_K with five bits.
static inline void decode_q5_k(const uint8_t* block, float* out) {
    const float d = load_f16(block), dmin = load_f16(block + 2);
    const uint8_t *scales = block + 4, *high = block + 16, *nibbles = block + 48;
    for (int sub = 0; sub < 8; ++sub) {
        const ScaleAndMin s = k_scale(scales, sub);
        const float step = d * float(s.scale), offset = dmin * float(s.min);
        for (int l = 0; l < 32; ++l) {
            const int low = nibbles[sub / 2 * 32 + l] >> (sub % 2 * 4) & 15;
            const int code = low | (high[l] >> sub & 1) << 4;
            out[sub * 32 + l] = step * float(code) - offset;
        }
    }
}

// low nibbles[128], high bit pairs[64], int8 scales[16], d: weight = d * scale * (code - 32), sub-blocks of 16.
// Each half (128 weights) is four runs of 32: runs 0 and 1 are the low nibbles of its 64 bytes, runs 2 and 3 the high
// ones; the two upper bits of run q are bits 2q, 2q + 1 of the half's 32 bytes of pairs.
static inline void decode_q6_k(const uint8_t* block, float* out) {
    const float d = load_f16(block + 208);
    for (int half = 0; half < 2; ++half) {
        const uint8_t *low = block + half * 64, *high = block + 128 + half * 32, *scales = block + 192 + half * 8;
        for (int run = 0; run < 4; ++run) {
            for (int l = 0; l < 32; ++l) {
                const int nibble = low[run % 2 * 32 + l] >> (run / 2 * 4) & 15;
                const int code = nibble | (high[l] >> (run * 2) & 3) << 4;
                const float step = d * float(int8_t(scales[run * 2 + l / 16]));
                out[half * 128 + run * 32 + l] = step * float(code - 32);
            }
        }
    }
}

static inline void decode_block(TensorType type, const uint8_t* block, float* out) {
    switch (type) {
        case TensorType::F32: out[0] = load_f32(block); return;
        case TensorType::F16: out[0] = load_f16(block); return;
        case TensorType::BF16: out[0] = bf16_to_f32(load_u16(block)); return;
        case TensorType::Q4_0: decode_q4_0(block, out); return;
        case TensorType::Q4_1: decode_q4_1(block, out); return;
        case TensorType::Q5_0: decode_q5_0(block, out); return;
        case TensorType::Q5_1: decode_q5_1(block, out); return;
        case TensorType::Q8_0: decode_q8_0(block, out); return;
        case TensorType::Q4_K: decode_q4_k(block, out); return;
        case TensorType::Q5_K: decode_q5_k(block, out); return;
        case TensorType::Q6_K: decode_q6_k(block, out); return;
    }
}

// out[0, count) = weights [first, first + count) of the row whose first block is at `row`.
static inline void decode_row(TensorType type, const uint8_t* row, int64_t first, int64_t count, float* out) {
    const BlockShape shape = block_shape(type);
    const int64_t end = first + count;
    for (int64_t at = first; at < end;) {
        const int64_t start = at / shape.weights * shape.weights;  // of the block `at` lies in
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
