// Blocks of 256 weights whose levels are 8-bit integers, in parts of 16 or 32. Each part has an integer scale, and
// optionally an integer minimum. A type defines how they are stored in its blocks:
//
//   weight = d * unit * scale(part) * level - dmin * minimum(part)
//
//   unit                a power of two
//   parts               8, 16, or 1 if d is the only scale
//   level(block, j)     the level of weight j
//   scales(block, at)   the scale of part at.index, or of as many parts as there are lanes
//   minima(block, at)   the minima, if there is an `offset`, dmin
//   levels(block, i)    the levels of weights [32 i, 32 i + 32), as Bytes or as Floats
//   first_level, last_level   the range of the levels
//   has_codes           whether converting the levels to bf16 takes few instructions
//   codes(block, i)     the levels in bf16, if they are not all between -16 and 15
#pragma once
#include "quant/numbers.h"
#if defined(FB_ISA)
#include "quant/vectors.h"
#endif

namespace fb::FB_SET::formats {

// The parts that are requested: one, or several in the lanes of a vector. Selects their numbers from an array.
struct OnePart {
    uint32_t index;
    FB_INLINE uint32_t bytes(const uint8_t* from) const { return from[index]; }
    FB_INLINE uint32_t halves(const uint8_t* from) const { return load_u16(from + 2 * index); }
    FB_INLINE uint32_t words(const uint8_t* from) const { return load_u32(from + 4 * index); }
    FB_INLINE uint32_t upper_words(const uint8_t* from) const { return load_u32(from + 8 * index + 4); }
};
#if defined(FB_ISA)
struct LaneParts {
    int first;
    UVec index = {};
    explicit FB_INLINE LaneParts(int start) : first(start) {
        for (int i = 0; i < kLanes; i++) index[i] = uint32_t(start + i);
    }
    FB_INLINE UVec bytes(const uint8_t* from) const { return widen(from + first); }
    FB_INLINE UVec halves(const uint8_t* from) const {
        return __builtin_convertvector(load_raw<HVec>(from + 2 * first), UVec);
    }
    FB_INLINE UVec words(const uint8_t* from) const { return load_raw<UVec>(from + 4 * first); }
    FB_INLINE UVec upper_words(const uint8_t* from) const {  // of pairs
        using Pairs = uint64_t __attribute__((vector_size(8 * kLanes)));
        Pairs pairs;
        __builtin_memcpy(&pairs, from + 8 * first, sizeof pairs);
        return __builtin_convertvector(pairs >> 32, UVec);
    }
};
#endif

// The 4-bit numbers packed in eight bytes, low nibble first.
template <class Index>
FB_INLINE Index nibbles_at(const uint8_t* from, Index index) {
    const Index none{}, words = index < 8 ? none + load_u32(from) : none + load_u32(from + 4);
    return words >> index % 8 * 4 & 15;
}

template <class Type>
struct LevelBlocks {
    static constexpr int weights = 256;
    static constexpr bool has_codes = false, has_bytes = true;

    static FB_INLINE void decode(const uint8_t* block, float* out) {
        const float d = load_f16(block + Type::scale.at) * Type::unit;
        for (int j = 0; j < weights; ++j) {
            const OnePart part{uint32_t(j * Type::parts / weights)};
            out[j] = d * float(int(Type::scales(block, part))) * float(Type::level(block, j));
            if constexpr (Type::offset.at >= 0)
                out[j] -= load_f16(block + Type::offset.at) * float(int(Type::minima(block, part)));
        }
    }

#if defined(FB_ISA)
    static FB_INLINE Floats run(const uint8_t* row, int64_t i) {
        const uint8_t* block = row + i / 8 * Type::bytes;
        const int sub = int(i % 8);
        const auto steps = [&](int half) {
            return step(block) * float(int(Type::scales(block, part_of(2 * sub + half))));
        };
        if constexpr (Type::offset.at >= 0) {
            const float dmin = number(block, Type::offset);
            const auto least = [&](int half) {
                return dmin * float(int(Type::minima(block, part_of(2 * sub + half))));
            };
            return scaled(block, sub, steps(0), steps(1), least(0), least(1));
        } else {
            return scaled(block, sub, steps(0), steps(1), 0, 0);
        }
    }

    // A block of which all runs are needed: their scales are computed together.
    class Block {
    public:
        explicit FB_INLINE Block(const uint8_t* block) : block_(block) {
            for (int part = 0; part < Type::parts; part += kWidth) {
                put(steps_ + part, step(block), Type::scales(block, parts_from(part)));
                if constexpr (Type::offset.at >= 0)
                    put(least_ + part, number(block, Type::offset), Type::minima(block, parts_from(part)));
            }
        }
        FB_INLINE Floats run(int i) const {
            const int first = 2 * i * Type::parts / 16, second = (2 * i + 1) * Type::parts / 16;
            if constexpr (Type::offset.at >= 0)
                return scaled(block_, i, steps_[first], steps_[second], least_[first], least_[second]);
            else return scaled(block_, i, steps_[first], steps_[second], 0, 0);
        }

    private:
        static constexpr bool kTogether = Type::parts >= kLanes && Type::parts > 1;
        static constexpr int kWidth = kTogether ? kLanes : 1;
        static FB_INLINE auto parts_from(int part) {
            if constexpr (kTogether) return LaneParts(part);
            else return OnePart{uint32_t(part)};
        }
        static FB_INLINE void put(float* to, float d, UVec numbers) { store(to, to_float(numbers) * d); }
        static FB_INLINE void put(float* to, float d, uint32_t number) { *to = d * float(int(number)); }

        const uint8_t* block_;
        float steps_[Type::parts], least_[Type::offset.at >= 0 ? Type::parts : 1];
    };

private:
    static FB_INLINE float number(const uint8_t* block, Field field) {
        return field.at + 8 <= Type::bytes ? head_half(block + field.at) : half_to_float(block + field.at);
    }
    static FB_INLINE float step(const uint8_t* block) { return number(block, Type::scale) * Type::unit; }
    static FB_INLINE OnePart part_of(int sixteenth) { return {uint32_t(sixteenth * Type::parts / 16)}; }

    // Run i, each half with its step and minimum.
    static FB_INLINE Floats scaled(const uint8_t* block, int i, float step0, float step1, float least0, float least1) {
        const Floats levels = to_floats(Type::levels(block, i));
        return run_of([&](int v) {
            const bool second = v * kLanes >= 16;
            const Vec whole = levels.v[v] * (second ? step1 : step0);
            if constexpr (Type::offset.at >= 0) return whole - (second ? least1 : least0);
            else return whole;
        });
    }

public:
#endif

#if defined(FB_ISA)
    static constexpr int kMinimumSign = -1;

    template <int bias>
    static FB_INLINE Bytes byte_codes(const uint8_t* block, int i) {
        return Type::levels(block, i) + uint8_t(bias);
    }

    template <int vectors>
    static FB_INLINE void numbers(const uint8_t* block, Vec (&scales)[vectors], Vec (&minima)[vectors]) {
        for (int v = 0; v < vectors; v++) {
            LaneParts at(v * kLanes);
            if constexpr (Type::parts < kLanes) at.index %= uint32_t(Type::parts);
            const auto as_float = [](auto numbers) { return to_float(numbers + UVec{}); };
            scales[v] = as_float(Type::scales(block, at)) * step(block);
            if constexpr (Type::offset.at >= 0)
                minima[v] = as_float(Type::minima(block, at)) * number(block, Type::offset);
        }
    }
#endif

#if defined(__AVX512BF16__)
    static FB_INLINE __m512i codes(const uint8_t* block, int i) { return small_as_bf16(Type::levels(block, i)); }

    // Block `index` of a row.
    template <class Rows>
    static FB_INLINE void dot_block(const Rows& rows, const uint8_t* block, int64_t index,
                                    typename Rows::Parts& parts) {
        Vec scales_of[1], minima_of[1];
        numbers(block, scales_of, minima_of);
        const __m512 steps = (__m512)scales_of[0];
        if constexpr (Type::offset.at >= 0) rows.add_sums((__m512)minima_of[0], index, parts);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m512i codes[1] = {Type::codes(block, i)};
            constexpr int kHalves = Type::parts / 8;  // parts of a run that have their own scales
            __m512 scales = steps;
            if constexpr (kHalves > 0) scales = spread_lanes<kHalves>(steps, kHalves * i);
            rows.add(codes, index * 8 + i, scales, i % Rows::kChains, parts);
        }
    }

    static FB_INLINE Runs<2> bf16_runs(const uint8_t* row, int64_t i) {
        Runs<2> out;
        unrolled<2>([&](auto half) {
            const Floats values = run(row, 2 * i + half);
            out.v[half] = narrow((__m512)values.v[0], (__m512)values.v[1]);
        });
        return out;
    }
#endif
};

}  // namespace fb::FB_SET::formats
