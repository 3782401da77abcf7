// The vocabulary of every kernel: element types, 2-D views of activations, handles of stored weights.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// These headers are compiled once per instruction set. Everything small is forced inline, so that no out-of-line copy
// built for one set can be chosen by the linker for code that runs on another.
#define FB_INLINE inline __attribute__((always_inline))

namespace fb {

enum class Dtype : int { f32, bf16, f64 };

FB_INLINE float bf16_to_f32(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// Round to nearest even; NaN stays NaN.
FB_INLINE uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// A row-major matrix in memory; `ld` is the distance between rows in elements. `data == nullptr` means "absent".
struct View {
    void* data = nullptr;
    Dtype dtype = Dtype::f32;
    int64_t rows = 0, cols = 0, ld = 0;

    FB_INLINE explicit operator bool() const { return data != nullptr; }
    template <class T>
    FB_INLINE T* row(int64_t r) const {
        return static_cast<T*>(data) + r * ld;
    }
};

// GGML's numbers, as they stand in a GGUF file.
enum class TensorType : int {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    BF16 = 30,
};

struct BlockShape {
    int weights;  // weights a block holds
    int bytes;
};

FB_INLINE constexpr BlockShape block_shape(TensorType type) {
    switch (type) {
        case TensorType::F32: return {1, 4};
        case TensorType::F16: return {1, 2};
        case TensorType::BF16: return {1, 2};
        case TensorType::Q4_0: return {32, 18};
        case TensorType::Q4_1: return {32, 20};
        case TensorType::Q5_0: return {32, 22};
        case TensorType::Q5_1: return {32, 24};
        case TensorType::Q8_0: return {32, 34};
        case TensorType::Q4_K: return {256, 144};
        case TensorType::Q5_K: return {256, 176};
        case TensorType::Q6_K: return {256, 210};
    }
    return {0, 0};
}

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
