// Helpers with which the formats unpack a run of 32 weights in registers.
#pragma once
#include "quant/numbers.h"
#include "simd/isa.h"

namespace fb::FB_ISA {

constexpr int kRun = 32, kRunVectors = kRun / kLanes;

struct Floats {
    Vec v[kRunVectors];
};

// out.v[i] = value(i)
template <class Value>
FB_INLINE Floats run_of(const Value& value) {
    Floats out;
    for (int v = 0; v < kRunVectors; v++) out.v[v] = value(v);
    return out;
}

// Reads the half-precision number at the start of a block. `head_half` may read eight bytes, with one instruction that
// loads and converts: every such number is followed by enough bytes, except Q6_K's, the last in its block.
FB_INLINE float half_to_float(const uint8_t* bytes) {
#if defined(__F16C__)
    uint16_t bits;
    __builtin_memcpy(&bits, bytes, 2);
    return _cvtsh_ss(bits);
#else
    return load_f16(bytes);
#endif
}
FB_INLINE float head_half(const uint8_t* bytes) {
#if defined(__F16C__)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))));
#else
    return load_f16(bytes);
#endif
}

// The scale at the head of a block.
template <Number kind>
FB_INLINE float head(const uint8_t* bytes) {
    static_assert(kind == Number::f16 || kind == Number::e8m0);
    return kind == Number::f16 ? head_half(bytes) : load_e8m0(bytes);
}

// kLanes bytes, signed bytes or half-precision numbers, one per lane.
#if defined(__AVX512F__)
FB_INLINE UVec widen(__m128i bytes) { return (UVec)_mm512_cvtepu8_epi32(bytes); }
#elif defined(__AVX2__)
FB_INLINE UVec widen(__m128i bytes) { return (UVec)_mm256_cvtepu8_epi32(bytes); }
#endif
FB_INLINE UVec widen(const uint8_t* bytes) {
#if defined(__AVX512F__)
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
    return widen(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
    uint32_t lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = bytes[i];
    return load_raw<UVec>(lanes);
#endif
}
FB_INLINE IVec widen(const int8_t* bytes) {
#if defined(__AVX512F__)
    return (IVec)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
    return (IVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
    int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = bytes[i];
    return load_raw<IVec>(lanes);
#endif
}
FB_INLINE Vec widen_halves(const uint8_t* halves) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#elif defined(__AVX2__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
#else
    float lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = half_to_float(halves + 2 * i);
    return load_raw<Vec>(lanes);
#endif
}

FB_INLINE Vec to_float(IVec codes) { return __builtin_convertvector(codes, Vec); }
FB_INLINE Vec to_float(UVec codes) { return to_float((IVec)codes); }

// The levels of codes first, first + 1, ..., computed at compile time, because the compiler does not always see that
// they are constants.
template <class Number, class Levels, int first, int count>
struct LevelTable {
    alignas(64) Number values[count] = {};
    constexpr LevelTable() {
        for (int i = 0; i < count; i++) values[i] = Number(Levels::at(first + i));
    }
};
template <class Number, class Levels, int first, int count>
inline constexpr LevelTable<Number, Levels, first, count> kLevels;

template <class Levels, int first>
FB_INLINE Vec levels_from() {
    return load(kLevels<float, Levels, first, kLanes>.values);
}

// step * level + offset for the codes in the low four bits of each lane. Higher bits are ignored.
template <class Levels>
FB_INLINE Vec level(UVec code, float step, float offset) {
#if defined(__AVX512F__)
    // Sixteen lanes hold every value that the block can have, and the code selects one.
    return (Vec)_mm512_permutexvar_ps((__m512i)code, (__m512)(levels_from<Levels, 0>() * step + offset));
#else
    static_assert(Levels::even);
    return to_float(code & 15u) * step + (Levels::at(0) * step + offset);
#endif
}

// The same for five bits: bit i of `fifth` belongs to lane i.
template <class Levels>
FB_INLINE Vec level(UVec code, uint32_t fifth, float step, float offset) {
#if defined(__AVX512F__)
    const Vec low = level<Levels>(code, step, offset), table = levels_from<Levels, 16>() * step + offset;
    return (Vec)_mm512_mask_permutexvar_ps((__m512)low, __mmask16(fifth), (__m512i)code, (__m512)table);
#else
    static_assert(Levels::even);
    UVec mine;
    for (int i = 0; i < kLanes; i++) mine[i] = 1u << i;
    const UVec high = (UVec)(((fifth - UVec{}) & mine) == mine) & 16u;
    return to_float((code & 15u) | high) * step + (Levels::at(0) * step + offset);
#endif
}

using Bytes = uint8_t __attribute__((vector_size(kRun)));

FB_INLINE Bytes bytes_at(const uint8_t* from) {
    Bytes bytes;
    __builtin_memcpy(&bytes, from, kRun);
    return bytes;
}

// Shifts each byte right, or left if `right` is negative, and keeps the bits of `mask`, which must all come from the
// same byte.
FB_INLINE Bytes bits_under(uint8_t mask, Bytes bytes, int right) {
    using Shorts = uint16_t __attribute__((vector_size(kRun)));
    return (Bytes)(right < 0 ? (Shorts)bytes << -right : (Shorts)bytes >> right) & mask;
}

// The 8-bit levels of the low nibbles of sixteen bytes, then those of the high nibbles.
template <class Levels>
FB_INLINE Bytes nibble_bytes(const uint8_t* nibbles) {
    const uint8_t* levels = kLevels<uint8_t, Levels, 0, 16>.values;
#if defined(__AVX2__)
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(levels)), four = _mm_set1_epi8(15);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(nibbles));
    return (Bytes)_mm256_set_m128i(_mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), four)),
                                   _mm_shuffle_epi8(table, _mm_and_si128(bytes, four)));
#elif defined(__aarch64__)
    const uint8x16_t table = vld1q_u8(levels), bytes = vld1q_u8(nibbles);
    const uint8x16_t halves[2] = {vqtbl1q_u8(table, vandq_u8(bytes, vdupq_n_u8(15))),
                                  vqtbl1q_u8(table, vshrq_n_u8(bytes, 4))};
    Bytes out;
    __builtin_memcpy(&out, halves, sizeof out);
    return out;
#else
    Bytes out;
    for (int i = 0; i < kRun; i++) out[i] = levels[nibbles[i % 16] >> (i / 16 * 4) & 15];
    return out;
#endif
}

// 32 levels of eight bits, converted to floats.
FB_INLINE Floats to_floats(Bytes levels) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m128i low = _mm256_castsi256_si128((__m256i)levels), high = _mm256_extracti128_si256((__m256i)levels, 1);
    const auto eight = [](__m128i all) { return to_float((IVec)_mm256_cvtepi8_epi32(all)); };
    return {{eight(low), eight(_mm_srli_si128(low, 8)), eight(high), eight(_mm_srli_si128(high, 8))}};
#elif defined(__AVX512F__)
    const auto sixteen = [](__m128i all) { return to_float((IVec)_mm512_cvtepi8_epi32(all)); };
    return {{sixteen(_mm256_castsi256_si128((__m256i)levels)), sixteen(_mm256_extracti128_si256((__m256i)levels, 1))}};
#else
    int8_t bytes[kRun];
    __builtin_memcpy(bytes, &levels, kRun);
    return run_of([&](int v) { return to_float(widen(bytes + v * kLanes)); });
#endif
}

FB_INLINE Floats to_floats(const Floats& levels) { return levels; }

// Bit i of the result is bit `which` of byte i of 32.
FB_INLINE uint32_t bits_of(const uint8_t* bytes, int which) {
#if defined(__AVX2__)
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    return uint32_t(_mm256_movemask_epi8(_mm256_sll_epi16(all, _mm_cvtsi32_si128(7 - which))));
#else
    uint32_t bits = 0;
    for (int i = 0; i < kRun; i++) bits |= uint32_t(bytes[i] >> which & 1) << i;
    return bits;
#endif
}

// The scales in the lowest byte of each lane.
FB_INLINE Vec e8m0_lanes(IVec heads) {
    const IVec power = heads & 255;
    return (Vec)(power < 2 ? (IVec{} + 0x00200000) << power : (power - 1) << 23);
}

// Number i of those at `from`, from + stride, ..., in lane i; zeros behind the first `count`.
template <Number kind>
FB_INLINE Vec lane_numbers(const uint8_t* from, int stride, int count) {
    static_assert(kind == Number::f16 || kind == Number::e8m0);
    const auto bits = [&](int i) {
        const uint8_t* at = from + i * stride;
        return i >= count ? 0 : kind == Number::f16 ? load_u16(at) : *at;
    };
    if constexpr (kind == Number::e8m0) {
        IVec heads;
        for (int i = 0; i < kLanes; i++) heads[i] = bits(i);
        Vec scales = e8m0_lanes(heads);
        for (int i = count; i < kLanes; i++) scales[i] = 0;
        return scales;
    }
#if defined(__AVX2__) && !defined(__AVX512F__)
    const auto half = [&](int i) { return short(bits(i)); };
    return (Vec)_mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
#elif defined(__AVX512F__)
    const auto eight = [&](int i) {
        const auto half = [&](int k) { return short(bits(i + k)); };
        return _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7));
    };
    return (Vec)_mm512_cvtph_ps(_mm256_set_m128i(eight(8), eight(0)));
#else
    Vec numbers;
    for (int i = 0; i < kLanes; i++) numbers[i] = i < count ? half_to_float(from + i * stride) : 0;
    return numbers;
#endif
}

#if defined(__AVX512F__)

using IHalves = short __attribute__((vector_size(64)));

// For products of codes: the number of blocks of 32 whose scales are read together, one per lane.
constexpr int kGroup = 16;

// The scales in the low two bytes of each lane.
FB_INLINE __m512 half_lanes(__m512i heads) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(heads)); }

// Numbers first, ... first + n - 1, each repeated in the same number of lanes.
template <int n>
FB_INLINE __m512 spread_lanes(__m512 numbers, int first) {
    IVec lanes;
    for (int i = 0; i < kLanes; i++) lanes[i] = i * n / kLanes;
    return _mm512_permutexvar_ps((__m512i)(lanes + first), numbers);
}

// 32 bytes twice, each copy rotated left within its 64-bit lanes: by `first`, and by `second`. Bits that leave their
// byte must be masked.
FB_INLINE __m512i rotated_twice(const uint8_t* bytes, int first, int second) {
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
    const __m512i one = _mm512_set1_epi64(first & 63);
    return _mm512_rolv_epi64(both, _mm512_inserti64x4(one, _mm256_set1_epi64x(second & 63), 1));
}

// The bits of `low` under `mask`, and those of `high` elsewhere.
FB_INLINE __m512i merged(int mask, __m512i low, __m512i high) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(char(mask)), low, high, 0xca);
}

#endif

// 16 in each byte whose bit is set.
FB_INLINE Bytes sixteens(uint32_t bits) {
#if defined(__AVX512F__)
    return (Bytes)_mm256_maskz_set1_epi8(bits, 16);
#elif defined(__AVX2__)
    const __m256i source = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i copies = _mm256_shuffle_epi8(_mm256_set1_epi32(int(bits)), source);
    const __m256i mine = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, mine), mine);
    return (Bytes)_mm256_and_si256(set, _mm256_set1_epi8(16));
#else
    Bytes out;
    for (int i = 0; i < kRun; i++) out[i] = uint8_t((bits >> i & 1) << 4);
    return out;
#endif
}

// Runs in bf16, in row order. One run is unpacked at once, or two if they share bytes.
using Run = uint16_t __attribute__((vector_size(2 * kRun)));
template <int n>
struct Runs {
    static constexpr int kWeights = n * kRun;
    Run v[n];
};

#if defined(__AVX512BF16__)

template <class Levels, int first = 0>
FB_INLINE __m512 level_table() {  // the levels of codes first, first + 1, ... first + 15
    return (__m512)levels_from<Levels, first>();
}

FB_INLINE __m512 splat_half(const uint8_t* bytes) { return _mm512_set1_ps(head_half(bytes)); }

FB_INLINE Run narrow(__m512 low, __m512 high) { return (Run)_mm512_cvtne2ps_pbh(high, low); }

// 16 bytes as 32 words: the bytes themselves (low nibbles below four arbitrary bits), then their high nibbles.
FB_INLINE __m512i nibble_words(const uint8_t* nibbles) {
    const __m512i words = _mm512_castsi256_si512(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)nibbles)));
    const __m512i twice = _mm512_shuffle_i64x2(words, words, 0x44);
    return _mm512_srlv_epi16(twice, _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1));
}

// Table look-ups. A block has at most 16 or 32 distinct weights. They are computed and rounded once, and the codes
// select them with one permutation. It reads five bits of each index, so a table of 16 is stored twice.
FB_INLINE Run look_up(__m512i index, __m512 levels) {
    return (Run)_mm512_permutexvar_epi16(index, (__m512i)_mm512_cvtne2ps_pbh(levels, levels));
}
FB_INLINE Run look_up(__m512i index, __mmask32 fifth, __m512 low, __m512 high) {
    const __m512i four = _mm512_and_si512(index, _mm512_set1_epi16(15));
    return (Run)_mm512_permutexvar_epi16(_mm512_mask_add_epi16(four, fifth, four, _mm512_set1_epi16(16)),
                                         (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

// Converts codes to their levels in bf16, from words whose low four bits are theirs, and the fifth bits.
template <class Levels, bool five>
FB_INLINE __m512i bf16_levels(__m512i words, __mmask32 fifth) {
    if constexpr (!five) return (__m512i)look_up(words, level_table<Levels>());
    else return (__m512i)look_up(words, fifth, level_table<Levels>(), level_table<Levels, 16>());
}

// Levels from -16 to 15: their low five bits are looked up.
struct SmallLevels {
    static FB_INLINE constexpr int at(int code) { return code < 16 ? code : code - 32; }
};
FB_INLINE __m512i small_as_bf16(Bytes levels) {
    const __m512i table = (__m512i)narrow(level_table<SmallLevels>(), level_table<SmallLevels, 16>());
    return _mm512_permutexvar_epi16(_mm512_cvtepi8_epi16((__m256i)levels), table);
}

FB_INLINE __m512 bytes_to_float(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

#endif

}  // namespace fb::FB_ISA
