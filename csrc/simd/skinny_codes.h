// Products of stored rows with a few rows of x in bf16, on sets with bf16 dot products. A block's integer codes are
// exact in bf16, so they are multiplied directly, and the block's scale multiplies the sum of the products. Only sums
// are rounded. Minima multiply the sums of x over their blocks, which are the same for every row.
#pragma once
#include "simd/skinny.h"
#include "simd/unpack_bf16.h"

namespace fb::FB_ISA {

#if defined(__AVX512BF16__)

// A format with `has_codes` multiplies a block of 256, or a group of blocks of 32, by these rows.
template <TensorType type, int T>
class CodeRows {
public:
    static constexpr int kChains = 4;  // independent chains of additions, which hide each other's latency
    using Parts = Vec[T][kChains];

    static int64_t scratch_bytes(int64_t, int64_t cols) { return T * (padded(cols) * 2 + padded(cols) / kLanes * 4); }

    CodeRows(const View& x, void* scratch)
        : cols_(x.cols),
          width_(padded(x.cols)),
          x_(static_cast<uint16_t*>(scratch)),
          sums_(reinterpret_cast<float*>(x_ + T * width_)) {
        for (int t = 0; t < T; t++) {
            uint16_t* row = x_ + t * width_;
            std::copy_n(x.row<uint16_t>(given(x, t)), cols_, row);
            std::fill(row + cols_, row + width_, uint16_t(0));
            if constexpr (kShifted) sum_blocks(t);
            if constexpr (!kLarge)  // two blocks are multiplied at once: both first halves, then both second halves
                for (uint16_t* pair = row; pair < row + width_; pair += 2 * kRun)
                    std::swap_ranges(pair + kRun / 2, pair + kRun, pair + kRun);
        }
    }

    // sums[t] = the product of one stored row with x_t, spread over lanes.
    FB_INLINE void dot(const uint8_t* row, int64_t, Vec (&sums)[T]) const {
        Parts parts = {};
        const int64_t blocks = cols_ / kBlock.weights;
        if constexpr (kLarge) {
            for (int64_t i = 0; i < blocks; i++) {
                read_ahead(row + i * kBlock.bytes, kBlock.bytes);
                Format<type>::dot_block(*this, row + i * kBlock.bytes, i, parts);
            }
        } else {
            int64_t first = 0;
            const auto add_group = [&](int count) {
                read_ahead(row + first * kBlock.bytes, count * kBlock.bytes);
                Format<type>::dot_group(*this, row + first * kBlock.bytes, first, count, parts);
            };
            for (; first + kGroup <= blocks; first += kGroup) add_group(kGroup);
            if (first < blocks) add_group(int(blocks - first));
        }
        for (int t = 0; t < T; t++) sums[t] = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
    }

    // sums += offsets times the sums of x over group or large block i.
    FB_INLINE void add_sums(__m512 offsets, int64_t i, Parts& parts) const {
        for (int t = 0; t < T; t++) parts[t][0] += (Vec)offsets * load(sums_of(t, i));
    }

    // sums += scales * (codes x), with the codes in one or two vectors that belong to x from run `run` on.
    template <int n>
    FB_INLINE void add(const __m512i (&codes)[n], int64_t run, __m512 scales, int chain, Parts& parts) const {
        for (int t = 0; t < T; t++) {
            __m512 products = _mm512_setzero_ps();
            for (int i = 0; i < n; i++) {
                const __m512i x = _mm512_loadu_si512(x_ + t * width_ + (run + i) * kRun);
                products = _mm512_dpbf16_ps(products, (__m512bh)codes[i], (__m512bh)x);
            }
            parts[t][chain] += (Vec)(scales * products);
        }
    }

private:
    static constexpr BlockShape kBlock = block_shape(type);
    static constexpr bool kShifted = Format<type>::offset.at >= 0, kLarge = kBlock.weights == 256;

    static int64_t padded(int64_t cols) { return round_up(cols, kGroup * kRun); }

    // The sums of x_t that belong to group or large block i. In a group, lane j belongs to block j. A large block of
    // eight parts has its scales in lanes 0 to 7, where there is nothing to sum, and its minima, which are subtracted,
    // in the others. A block of sixteen parts has minima in all lanes.
    FB_INLINE float* sums_of(int t, int64_t i) const { return sums_ + t * width_ / kLanes + i * kLanes; }

    void sum_blocks(int t) {
        std::fill_n(sums_of(t, 0), width_ / kLanes, 0.0f);
        for (int64_t run = 0; run < width_ / kRun; run++) {
            const uint16_t* x = x_ + t * width_ + run * kRun;
            const Vec first = load(x), second = load(x + kLanes);
            if constexpr (!kLarge) {
                sums_of(t, run / kGroup)[run % kGroup] = sum(first + second);
            } else if constexpr (Format<type>::parts == 16) {
                sums_of(t, run / 8)[run % 8 * 2] = -sum(first);
                sums_of(t, run / 8)[run % 8 * 2 + 1] = -sum(second);
            } else {
                sums_of(t, run / 8)[8 + run % 8] = -sum(first + second);
            }
        }
    }

    int64_t cols_, width_;
    uint16_t* x_;
    float* sums_;
};

#endif

}  // namespace fb::FB_ISA
