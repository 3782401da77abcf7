// Products of stored rows with several rows of x that are rounded to eight bits (core/rounded.h), on sets with
// AVX512-VNNI. kLanes stored rows are unpacked and transposed, a section at a time, so that each lane belongs to one of
// them. Then one number of x multiplies a whole vector, and the integer products of a part are summed before they are
// scaled. The rows of x share the unpacked section. The sums have the order of simd/part_sums.h.
#pragma once
#include "simd/skinny_bytes.h"

namespace fb::FB_ISA {

#if defined(__AVX512BF16__)

// sums + codes * x of four bytes in each lane. All lanes have the same four of x, which are in memory.
FB_INLINE IVec add_dots(IVec sums, IVec codes, const int8_t* x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(*reinterpret_cast<const int8_t (*)[4]>(x)));
    return sums;
}

template <TensorType type>
class ByteTiles : ByteRows<type, 1> {
    using Base = ByteRows<type, 1>;
    using Base::kBlock, Base::kLarge, Base::kShifted, Base::kSection, Base::kParts, Base::kPart, Base::kSums;
    using typename Base::Stored;
    static_assert(Base::kVectors == 1);

public:
    using Base::Base, Base::scratch_bytes;

    // results[t] = the products of `live` stored rows, one per lane, with x_t. The rows are `stride` bytes apart.
    void multiply(const uint8_t* rows, int64_t stride, int64_t live, Vec (&results)[kRoundedRows]) const {
        Vec sums[kRoundedRows][kPartSums];
        for (int64_t t = 0; t <= this->last_; t++)
            for (Vec& sum : sums[t]) sum = Vec{};
        Section section;
        for (int64_t s = 0; s < this->sections_; s++) {
            const int runs = int(std::min<int64_t>(kSection, this->cols_ - s * kSection) / kRun);
            unpack(rows + s * (kSection / kBlock.weights) * kBlock.bytes, stride, live, runs, section);
            for (int64_t t = 0; t <= this->last_; t += kTogether) {
                if (this->last_ - t >= kTogether / 2) add<kTogether>(section, s, runs, t, sums);
                else add<kTogether / 2>(section, s, runs, t, sums);
            }
        }
        for (int64_t t = 0; t <= this->last_; t++)
            results[t] = ((sums[t][0] + sums[t][4]) + (sums[t][2] + sums[t][6])) +
                         ((sums[t][1] + sums[t][5]) + (sums[t][3] + sums[t][7]));
    }

private:
    static constexpr int kTogether = 8;  // rows of x whose sums are in registers

    struct Section {
        IVec codes[kSection / 4];
        Vec scales[kLanes], minima[kLanes];  // of the parts
    };

    static FB_INLINE void unpack(const uint8_t* block, int64_t stride, int64_t live, int runs, Section& to) {
        const auto at = [&](int64_t n) { return block + std::min(n, live - 1) * stride; };
        for (int n = 0; n < kLanes; n++) {
            const int64_t bytes = runs * kRun / kBlock.weights * kBlock.bytes;
            for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(block + (kLanes + n) * stride + i);
            Vec scales[1], minima[1];
            if constexpr (kLarge) Stored::numbers(at(n), scales, minima);
            else Stored::numbers(at(n), runs, scales[0], minima[0]);
            to.scales[n] = scales[0];
            if constexpr (kShifted) to.minima[n] = minima[0];
        }
        transpose(to.scales);
        if constexpr (kShifted) transpose(to.minima);
        const auto unpack_pair = [&](int run) {
            Vec pair[kLanes];
#pragma GCC unroll 16
            for (int n = 0; n < kLanes; n++) pair[n] = (Vec)Base::stored_at(at(n), run, runs);
            transpose(pair);
            for (int i = 0; i < kLanes; i++) to.codes[run * 8 + i] = (IVec)pair[i];
        };
        if constexpr (kLarge) unrolled<kSection / kRun / 2>([&](auto i) { unpack_pair(2 * i); });
        else
            for (int run = 0; run < runs; run += 2) unpack_pair(run);
    }

    // Adds a section's products with x_first, ... x_(first + T - 1), as far as they exist.
    template <int T>
    FB_INLINE void add(const Section& section, int64_t s, int runs, int64_t first,
                       Vec (&sums)[kRoundedRows][kPartSums]) const {
        const int8_t* x[T];
        const float *scales[T], *totals[T];
        for (int t = 0; t < T; t++) {
            const int64_t at = std::min(first + t, this->last_) * this->sections_ + s;
            x[t] = this->codes_ + at * kSection;
            scales[t] = this->scales_ + at * kLanes;
            totals[t] = this->sums_ + at * kLanes;
        }
        const int count = runs * kRun / kPart;
        for (int j = 0; j < std::min(count, kPartSums); j++) {
            Vec parts[T] = {};
            unrolled<kParts / kPartSums>([&](auto step) {
                const int part = j + step() * kPartSums;
                if (part >= count) return;
                IVec dots[T] = {};
#pragma GCC unroll 8
                for (int i = 0; i < kPart / 4; i++) {
                    const IVec codes = section.codes[part * (kPart / 4) + i];
                    for (int t = 0; t < T; t++) dots[t] = add_dots(dots[t], codes, x[t] + part * kPart + 4 * i);
                }
                const Vec scale = section.scales[part], offset = kShifted ? section.minima[part] : scale;
                for (int t = 0; t < T; t++)
                    parts[t] += part_products<kSums>(dots[t], scale * scales[t][part], offset,
                                                     kSums ? splat(totals[t][part]) : Vec{});
            });
            for (int t = 0; t < T; t++)
                if (first + t <= this->last_) sums[first + t][j] += parts[t];
        }
    }
};

// out (t, N) (+)= x (t, K) W^T + bias + h (t, r) b (r, N), as `linear_skinny`.
template <TensorType type>
void linear_tiles(const View& x, const Matrix& w, const float* bias, const View& h, const View& b, const View& out,
                  bool accumulate) {
    using Tiles = ByteTiles<type>;
    const int64_t rank = h ? h.cols : 0, prepared = prepared_bytes<Tiles>(x.rows, x.cols);
    auto* scratch = static_cast<uint8_t*>(thread_scratch(size_t(skinny_scratch<Tiles>(x.rows, x.cols, rank))));
    const Tiles stored(x, scratch);
    float* factors = reinterpret_cast<float*>(scratch + prepared);
    if (h) widen_rows(h, h.rows, rank, factors);
    constexpr int64_t kUnitBytes = 32 * 1024;
    const int64_t units = round_up(std::max<int64_t>(1, w.rows * w.row_bytes / kUnitBytes), threads());
    const int64_t rows = round_up((w.rows + units - 1) / units, kLanes);
    parallel_for((w.rows + rows - 1) / rows, [&](int64_t unit) {
        const int64_t end = std::min(w.rows, (unit + 1) * rows);
        for (int64_t n = unit * rows; n < end; n += kLanes) {
            const int64_t live = std::min<int64_t>(kLanes, end - n);
            Vec sums[kRoundedRows];
            stored.multiply(w.row(n), w.row_bytes, live, sums);
            for (int64_t t = 0; t < x.rows; t++)
                finish_row(sums[t], live, out.row<float>(t) + n, bias ? bias + n : nullptr, factors + t * rank, b, rank,
                           n, accumulate);
        }
    });
}

#endif

}  // namespace fb::FB_ISA
