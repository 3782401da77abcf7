// The product for a few rows of x, a token being decoded: each weight is used so seldom that the memory it comes from
// sets the pace. The weights are unpacked in registers on their way past, row by row as they are stored.
#pragma once
#include "simd/rows.h"
#include "simd/transpose.h"
#include "simd/unpack.h"

namespace fb::FB_ISA {

constexpr int kSkinnyRows = 4;

// x as float32, its rows padded with zeros to `width`.
FB_INLINE void widen_rows(const View& x, int64_t width, float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t t = 0; t < x.rows; t++) {
            float* to = out + t * width;
            for_lanes(x.cols, [&](auto get, auto put) { put(to, get(x.row<X>(t))); });
            for (int64_t i = x.cols; i < width; i++) to[i] = 0;
        }
    });
}

// sums[t] = the products of one stored row with x_t, spread over lanes.
template <TensorType type, int T>
FB_INLINE void dot_row(const uint8_t* row, int64_t cols, const float* x, int64_t width, Vec (&sums)[T]) {
    constexpr int kChains = 4;  // of additions, side by side: they hide each other's latency
    Vec parts[T][kChains] = {};
    const auto add = [&](const Floats& weights, int64_t run, int chain) {
        for (int t = 0; t < T; t++)
            for (int v = 0; v < kRunVectors; v++)
                parts[t][(chain + v) % kChains] += weights.v[v] * load(x + t * width + run * kRun + v * kLanes);
    };
    const int64_t runs = cols / kRun;
    int64_t run = 0;
    // A block of 256 is unrolled: what its eight runs share is then computed once, and the rest by constants.
    constexpr BlockShape block = block_shape(type);
    constexpr int kUnroll = block.weights == 256 ? 8 : 2;
    constexpr int64_t kBytes = int64_t(kUnroll) * kRun / block.weights * block.bytes;
    for (; run + kUnroll <= runs; run += kUnroll)
#pragma GCC unroll 8
        for (int i = 0; i < kUnroll; i++)
            add(unpack_run<type>(row + run / kUnroll * kBytes, i), run + i, i * kRunVectors);
    for (; run < runs; run++) add(unpack_run<type>(row, run), run, 0);
    if (runs * kRun < cols) {
        Floats last{};
        unpack<type>(row, runs * kRun, cols - runs * kRun, reinterpret_cast<float*>(&last));
        add(last, runs, 0);
    }
    for (int t = 0; t < T; t++) sums[t] = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
}

// out (T, N) (+)= x (T, K) W^T + bias + h (T, r) b (r, N), for T of at most kSkinnyRows.
template <TensorType type, int T>
void linear_skinny(const View& x, const Matrix& w, const float* bias, const View& h, const View& b, const View& out,
                   bool accumulate) {
    const int64_t width = round_up(x.cols, kRun), rank = h ? h.cols : 0;
    // The caller's own scratch: the units below must not ask for any.
    float* wide = static_cast<float*>(thread_scratch(size_t(T * (width + rank)) * 4));
    float* factors = wide + T * width;
    widen_rows(x, width, wide);
    if (h) widen_rows(h, rank, factors);
    constexpr int64_t kUnitBytes = 32 * 1024;
    const int64_t rows = round_up(std::max<int64_t>(1, kUnitBytes / std::max<int64_t>(1, w.row_bytes)), kLanes);
    parallel_for((w.rows + rows - 1) / rows, [&](int64_t unit) {
        const int64_t end = std::min(w.rows, (unit + 1) * rows);
        for (int64_t n = unit * rows; n < end; n += kLanes) {
            const int64_t live = std::min<int64_t>(kLanes, end - n);
            Vec dots[T][kLanes] = {};
            const uint8_t* row = w.row(n);
            for (int64_t i = 0; i < live; i++) {
                Vec sums[T];
                dot_row<type, T>(row + i * w.row_bytes, x.cols, wide, width, sums);
                for (int t = 0; t < T; t++) dots[t][i] = sums[t];
            }
            for (int t = 0; t < T; t++) {
                const Vec total = lane_sums(dots[t]);
                for_lanes(live, [&](auto get, auto put) {
                    float* to = out.row<float>(t) + n;
                    Vec y = total;
                    if (accumulate) y += get(to);
                    if (bias) y += get(bias + n);
                    for (int64_t j = 0; j < rank; j++) y += factors[t * rank + j] * get(b.row<float>(j) + n);
                    put(to, y);
                });
            }
        }
    });
}

}  // namespace fb::FB_ISA
