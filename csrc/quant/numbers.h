// The numbers that a block stores besides its codes, and the weights of the plain types: little-endian bytes to
// float32. Every function has internal linkage, because this header is compiled once per instruction set, and no two of
// those builds may share a symbol.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/types.h"

namespace fb {

static inline uint16_t load_u16(const uint8_t* bytes) { return uint16_t(bytes[0] | bytes[1] << 8); }

static inline uint32_t load_u32(const uint8_t* bytes) {
    return uint32_t(load_u16(bytes)) | uint32_t(load_u16(bytes + 2)) << 16;
}

// Converts IEEE half precision to single, exactly, including subnormals, signed zeros, infinities and NaN payloads.
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

// Returns the smallest half-precision number that is at least `value`, which has no sign; infinity beyond the largest,
// and NaN for NaN.
static inline uint16_t f16_above(float value) {
    if (!(value <= 65504)) return value != value ? 0x7e00 : 0x7c00;
    if (value < 0x1p-14f) {  // a multiple of 2^-24
        const float steps = value * 0x1p24f;
        const uint16_t whole = uint16_t(steps);
        return uint16_t(whole + (float(whole) < steps));
    }
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return uint16_t(((bits + 0x1fff) >> 13) - ((127 - 15) << 10));
}

// Returns the nearest half-precision number, halves to even; infinity beyond the largest, and NaN for NaN.
static inline uint16_t f16_nearest(float value) {
    const uint16_t sign = uint16_t(std::signbit(value) << 15);
    const float size = std::fabs(value);
    const uint16_t above = f16_above(size);
    if (above == 0 || above >= 0x7c01) return uint16_t(sign | above);
    const uint16_t below = uint16_t(above - 1);
    if (above == 0x7c00) return uint16_t(sign | (size >= 65520 ? above : below));
    const float up = f16_to_f32(above) - size, down = size - f16_to_f32(below);
    return uint16_t(sign | (up < down || (up == down && above % 2 == 0) ? above : below));
}

static inline float load_f16(const uint8_t* bytes) { return f16_to_f32(load_u16(bytes)); }

static inline float load_f32(const uint8_t* bytes) {
    const uint32_t bits = load_u32(bytes);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// A power of two: half of the value of OCP's E8M0, so that the levels of e2m1 are integers, as in GGML. It is 2^(byte -
// 128), with the first two subnormal; 255 is not NaN.
static inline float load_e8m0(const uint8_t* bytes) {
    const uint32_t bits = *bytes < 2 ? 0x00200000u << *bytes : uint32_t(*bytes - 1) << 23;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

enum class Number { f32, f16, bf16, e8m0 };

FB_INLINE constexpr int size_of(Number kind) { return kind == Number::f32 ? 4 : kind == Number::e8m0 ? 1 : 2; }

FB_INLINE constexpr const char* name_of(Number kind) {
    constexpr const char* names[] = {"f32", "f16", "bf16", "e8m0"};
    return names[int(kind)];
}

static inline float load_number(Number kind, const uint8_t* bytes) {
    switch (kind) {
        case Number::f32: return load_f32(bytes);
        case Number::f16: return load_f16(bytes);
        case Number::bf16: return bf16_to_f32(load_u16(bytes));
        case Number::e8m0: return load_e8m0(bytes);
    }
    return 0;
}

// A number at byte `at` of a block. All bytes outside such fields may be arbitrary.
struct Field {
    Number kind;
    int at;
};
constexpr Field kNoField = {Number::f16, -1};

// A type with codes has integer `levels`: weight = scale * level + offset. It defines them by a type with `at(code)`,
// and `even` if at(code) = at(0) + code.
template <int first>
struct EvenLevels {
    static constexpr bool even = true;
    static FB_INLINE constexpr int at(int code) { return first + code; }
};

// The least or the greatest of the first `count` levels.
template <class Levels>
FB_INLINE constexpr int extreme_level(int count, bool greatest) {
    int found = Levels::at(0);
    for (int code = 1; code < count; code++)
        if (greatest ? Levels::at(code) > found : Levels::at(code) < found) found = Levels::at(code);
    return found;
}

// The same levels, each greater by `bias`.
template <class Levels, int bias>
struct Raised {
    static FB_INLINE constexpr int at(int code) { return Levels::at(code) + bias; }
};

}  // namespace fb
