// Products of stored rows with a few rows of x that are rounded to eight bits (core/rounded.h). Levels of eight bits
// are multiplied as integers. A section of a row, 256 weights or one block of 32 per lane, has the scales of its parts
// in the lanes of vectors.
#pragma once
#include "core/rounded.h"
#include "simd/dot_bytes.h"
#include "simd/part_sums.h"
#include "simd/skinny.h"

namespace fb::FB_ISA {

template <TensorType type, int T>
class ByteRows {
protected:
    using Stored = Format<type>;
    static constexpr BlockShape kBlock = block_shape(type);
    static constexpr bool kLarge = kBlock.weights == 256, kShifted = Stored::offset.at >= 0;
    static constexpr int kSection = kLarge ? 256 : kLanes * 32;  // weights
    // The parts of a section that have a scale of their own, of x or of the weights.
    static constexpr int kParts = parts_of<Stored>(kSection), kPart = kSection / kParts;
    static constexpr int kVectors = (kParts + kLanes - 1) / kLanes;
    static constexpr int kBias = byte_bias<Stored>();
    static constexpr bool kSums = kShifted || kBias != 0;
    static constexpr int kStep = 4 * kLanes;  // weights that one instruction multiplies
    static constexpr int kRuns = kStep > kRun ? kStep / kRun : 1;
#if defined(__AVX512BF16__)
    using Parts = EightSums<kParts>;
#else
    using Parts = Chains;
#endif

public:
    static int64_t scratch_bytes(int64_t rows, int64_t cols) {
        const int64_t numbers = sections(cols) * kVectors * kLanes * 4;
        return rows * (sections(cols) * kSection + numbers + (kSums ? numbers : 0));
    }

    ByteRows(const View& x, void* scratch)
        : cols_(x.cols),
          sections_(sections(x.cols)),
          last_(x.rows - 1),
          scales_(static_cast<float*>(scratch)),
          sums_(scales_ + x.rows * sections_ * kVectors * kLanes),
          codes_(reinterpret_cast<int8_t*>(sums_ + (kSums ? x.rows * sections_ * kVectors * kLanes : 0))) {
        by_dtype(x.dtype, [&](auto* tag) {
            using X = std::remove_pointer_t<decltype(tag)>;
            for (int64_t t = 0; t < x.rows; t++) round_row(x.row<X>(t), t);
        });
    }

    // sums[t] = the product of one stored row with x_(first + t), spread over lanes. The last row of x is repeated.
    FB_INLINE void dot(const uint8_t* row, int64_t first, Vec (&sums)[T]) const {
        Parts parts[T] = {};
        int64_t rows[T];
        for (int t = 0; t < T; t++) rows[t] = std::min(first + t, last_);
        if constexpr (kLarge) {
            for (int64_t s = 0; s < sections_; s++) add_section<8>(row + s * kBlock.bytes, s, 8, rows, parts);
        } else {
            const int64_t whole = cols_ / kSection;
            for (int64_t s = 0; s < whole; s++)
                add_section<kLanes>(row + s * kLanes * kBlock.bytes, s, kLanes, rows, parts);
            if (whole < sections_)
                add_section<0>(row + whole * kLanes * kBlock.bytes, whole, int(cols_ / kRun - whole * kLanes), rows,
                               parts);
        }
        for (int t = 0; t < T; t++) sums[t] = parts[t].sum();
    }

protected:
    static int64_t sections(int64_t cols) { return (cols + kSection - 1) / kSection; }

    // What the sums of x are multiplied by: the sign of the minima, or what corrects the bias.
    static constexpr int sum_factor() {
        if constexpr (kShifted) return Stored::kMinimumSign;
        else return -kBias;
    }

    // Adds a section's products. It has `runs` runs of 32, which is `known` unless that is 0.
    template <int known>
    FB_INLINE void add_section(const uint8_t* block, int64_t section, int runs, const int64_t (&rows)[T],
                               Parts (&parts)[T]) const {
        read_ahead(block, kLarge ? kBlock.bytes : runs * kBlock.bytes);
        Vec scales[kVectors], minima[kVectors];
        if constexpr (kLarge) Stored::numbers(block, scales, minima);
        else Stored::numbers(block, runs, scales[0], minima[0]);
        int64_t at[T];
        for (int t = 0; t < T; t++) at[t] = rows[t] * sections_ + section;
#if defined(__AVX512BF16__)
        IVec dots[T];
        sum_parts<known>(block, runs, at, dots);
        for (int t = 0; t < T; t++) {
            const Vec both = scales[0] * load(scales_ + at[t] * kLanes);
            parts[t].add(part_products<kSums>(dots[t], both, kShifted ? minima[0] : scales[0],
                                              kSums ? load(sums_ + at[t] * kLanes) : Vec{}));
        }
#else
        Vec both[T][kVectors];  // scales of the weights times those of x
        const int8_t* codes[T];
        for (int t = 0; t < T; t++) {
            codes[t] = codes_ + at[t] * kSection;
            for (int v = 0; v < kVectors; v++) {
                both[t][v] = scales[v] * load(scales_ + (at[t] * kVectors + v) * kLanes);
                if constexpr (kSums)
                    parts[t].chain[v % 2] +=
                        (kShifted ? minima[v] : scales[v]) * load(sums_ + (at[t] * kVectors + v) * kLanes);
            }
        }
        const auto add = [&](const auto& stored, int run) {
            for (int i = 0; i < kRun * kRuns / kStep; i++) {
                const int first = run * kRun + i * kStep;
                for (int t = 0; t < T; t++) {
                    const IVec dots =
                        dot_bytes < kBias == 0 &&
                        is_wide<Stored>() > (load_raw<ByteVec>(reinterpret_cast<const uint8_t*>(&stored) + i * kStep),
                                             load_raw<ByteVec>(codes[t] + first));
                    parts[t].chain[(first / kStep) % 2] +=
                        to_float(dots) * spread<(kStep > kPart ? kStep / kPart : 1)>(both[t], first / kPart);
                }
            }
        };
        if constexpr (known > 0) {
            unrolled<known / kRuns>([&](auto i) { add(stored_at(block, i * kRuns, known), i * kRuns); });
        } else {
            for (int run = 0; run < runs; run += kRuns) add(stored_at(block, run, runs), run);
        }
#endif
    }

#if defined(__AVX512BF16__)
    // dots[t] = the integer products of the section's parts with x, one part per lane. `at`: the section's number in x.
    template <int known>
    FB_INLINE void sum_parts(const uint8_t* block, int runs, const int64_t (&at)[T], IVec (&dots)[T]) const {
        constexpr int kQuads = kSection / (4 * kStep);
        IVec quads[T][kQuads];
        unrolled<kQuads>([&](auto q) {
            IVec pairs[T][2];
            unrolled<2>([&](auto p) {
                constexpr int first = 4 * q() + 2 * p();  // of two vectors
                if (!known && 2 * first >= runs) {
                    for (int t = 0; t < T; t++) pairs[t][p()] = IVec{};
                    return;
                }
                ByteVec codes[2] = {};
                for (int i = 0; i < 2; i++)
                    if (known || 2 * (first + i) < runs)
                        codes[i] = (ByteVec)stored_at(block, 2 * (first + i), known ? known : runs);
                for (int t = 0; t < T; t++) {
                    const int8_t* x = codes_ + at[t] * kSection + first * kStep;
                    pairs[t][p()] = pair_sums(dot_bytes<false>(codes[0], load_raw<ByteVec>(x)),
                                              dot_bytes<false>(codes[1], load_raw<ByteVec>(x + kStep)));
                }
            });
            for (int t = 0; t < T; t++) quads[t][q()] = quad_sums(pairs[t][0], pairs[t][1]);
        });
        for (int t = 0; t < T; t++) {
            if constexpr (kPart == 16) dots[t] = in_order<4>(quads[t][0]);
            else dots[t] = in_order<2>(half_sums(quads[t][0], quads[t][kQuads - 1]));
        }
    }
#endif

    // The codes of kRuns runs of a section, from `run` on.
    static FB_INLINE auto stored_at(const uint8_t* block, int run, [[maybe_unused]] int runs) {
        const uint8_t* one = kLarge ? block : block + run * kBlock.bytes;
        const int first = kLarge ? run : 0;
#if defined(__AVX512F__)
        // Without a second block, the first is multiplied by zeros.
        const uint8_t* two = kLarge || run + 1 == runs ? one : one + kBlock.bytes;
        return byte_pair<Stored, kBias>(one, first, two);
#else
        return Stored::template byte_codes<kBias>(one, first);
#endif
    }

    template <class X>
    FB_INLINE void round_row(const X* x, int64_t t) {
        const int64_t first = t * sections_;
        std::fill_n(scales_ + first * kVectors * kLanes, sections_ * kVectors * kLanes, 0.0f);
        if constexpr (kSums) std::fill_n(sums_ + first * kVectors * kLanes, sections_ * kVectors * kLanes, 0.0f);
        for (int64_t at = 0; at < sections_ * kSection; at += kRun) {
            int8_t* codes = codes_ + first * kSection + at;
            if (at >= cols_) {
                std::fill_n(codes, kRun, int8_t(0));
                continue;
            }
            Vec values[kRunVectors];
            IVec most = {};  // compared by their bits; NaN is the largest
            for (int v = 0; v < kRunVectors; v++) {
                values[v] = load(x + at + v * kLanes);
                const IVec size = (IVec)values[v] & 0x7fffffff;
                most = size > most ? size : most;
            }
            const int32_t bits = largest_lane(most);
            float size;
            __builtin_memcpy(&size, &bits, sizeof size);
            const Rounding rounding(size);
            IVec whole[kRunVectors];
            for (int v = 0; v < kRunVectors; v++) whole[v] = nearest(values[v] * rounding.inverse);
            narrow_bytes(whole, codes);
            const int64_t part = at % kSection / kPart;
            float* scales = scales_ + (first + at / kSection) * kVectors * kLanes + part;
            for (int i = 0; i < kRun / kPart; i++) scales[i] = rounding.scale;
            if constexpr (kSums) {
                float* sums = sums_ + (first + at / kSection) * kVectors * kLanes + part;
                const float factor = float(sum_factor()) * rounding.scale;
                for (int i = 0; i < kRun / kPart; i++) {
                    int total = 0;
                    for (int k = 0; k < kPart; k++) total += codes[i * kPart + k];
                    sums[i] = factor * float(total);
                }
            }
        }
    }

    int64_t cols_, sections_, last_;
    float *scales_, *sums_;
    int8_t* codes_;
};

}  // namespace fb::FB_ISA
