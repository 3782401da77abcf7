// The product for a few rows of x, as in decoding. Each weight is used so rarely that reading it limits the speed. So
// the weights are unpacked in registers, row by row as they are stored.
#pragma once
#include "simd/rows.h"
#include "simd/transpose.h"
#include "simd/unpack.h"

namespace fb::FB_ISA {

constexpr int kSkinnyRows = 4;

// The loops below read one stored row behind another, and the hardware requests their bytes too late. So bytes far
// ahead are requested for the second cache, and near ones for the first. `size`: the bytes that are multiplied next.
FB_INLINE void read_ahead(const uint8_t* from, int64_t size) {
    constexpr int64_t kFar = 4096, kNear = 1280;
    for (int64_t at = 0; at < size; at += 64) {
        __builtin_prefetch(from + kFar + at, 0, 2);
        __builtin_prefetch(from + kNear + at);
    }
}

// If there are fewer rows than a product takes, the last one is repeated.
FB_INLINE int64_t given(const View& x, int64_t t) { return std::min(t, x.rows - 1); }

// `rows` rows of x as float32, padded with zeros to `width`.
FB_INLINE void widen_rows(const View& x, int64_t rows, int64_t width, float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t t = 0; t < rows; t++) {
            float* to = out + t * width;
            for_lanes(x.cols, [&](auto get, auto put) { put(to, get(x.row<X>(given(x, t)))); });
            for (int64_t i = x.cols; i < width; i++) to[i] = 0;
        }
    });
}

// Unpacks the runs of a stretch of a row, with the format's `Block` if it has one.
template <class Format, class = void>
struct RunsAt {
    const uint8_t* start;
    explicit FB_INLINE RunsAt(const uint8_t* at) : start(at) {}
    FB_INLINE Floats run(int i) const { return Format::run(start, i); }
};
template <class Format>
struct RunsAt<Format, std::void_t<typename Format::Block>> : Format::Block {
    using Format::Block::Block;
};

// Products of stored rows with x (T, K), in float32.
template <TensorType type, int T>
class FloatRows {
public:
    static int64_t scratch_bytes(int64_t, int64_t cols) { return T * round_up(cols, kRun) * 4; }

    FloatRows(const View& x, void* scratch)
        : cols_(x.cols), width_(round_up(x.cols, kRun)), x_(static_cast<float*>(scratch)) {
        widen_rows(x, T, width_, x_);
    }

    // sums[t] = the product of one stored row with x_t, spread over lanes.
    FB_INLINE void dot(const uint8_t* row, int64_t, Vec (&sums)[T]) const {
        constexpr int kChains = 4;  // independent chains of additions, which hide each other's latency
        Vec parts[T][kChains] = {};
        const auto add = [&](const Floats& weights, int64_t run, int chain) {
            for (int t = 0; t < T; t++)
                for (int v = 0; v < kRunVectors; v++)
                    parts[t][(chain + v) % kChains] += weights.v[v] * load(x_ + t * width_ + run * kRun + v * kLanes);
        };
        const int64_t runs = cols_ / kRun;
        int64_t run = 0;
        // A block of 256 is unrolled, so that what its eight runs share is computed once, and the rest uses constants.
        constexpr BlockShape block = block_shape(type);
        constexpr int kUnroll = block.weights == 256 ? 8 : 2;
        constexpr int64_t kBytes = int64_t(kUnroll) * kRun / block.weights * block.bytes;
        for (; run + kUnroll <= runs; run += kUnroll) {
            const uint8_t* at = row + run / kUnroll * kBytes;
            read_ahead(at, kBytes);
            const RunsAt<Format<type>> stored(at);
#pragma GCC unroll 8
            for (int i = 0; i < kUnroll; i++) add(stored.run(i), run + i, i * kRunVectors);
        }
        for (; run < runs; run++) add(Format<type>::run(row, run), run, 0);
        if (runs * kRun < cols_) {
            Floats last{};
            unpack<type>(row, runs * kRun, cols_ - runs * kRun, reinterpret_cast<float*>(&last));
            add(last, runs, 0);
        }
        for (int t = 0; t < T; t++) sums[t] = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
    }

private:
    int64_t cols_, width_;
    float* x_;
};

template <class Rows>
FB_INLINE int64_t prepared_bytes(int64_t tokens, int64_t cols) {
    return round_up(Rows::scratch_bytes(tokens, cols), 64);
}

// x in the form that the rows of W need, followed by LoRA's h.
template <class Rows>
FB_INLINE int64_t skinny_scratch(int64_t tokens, int64_t cols, int64_t rank) {
    return prepared_bytes<Rows>(tokens, cols) + tokens * rank * 4;
}

// to[i] (+)= sums[i] + bias[i] + h b_i, for `live` columns of a row of the output, of which b's first is n.
FB_INLINE void finish_row(Vec sums, int64_t live, float* to, const float* bias, const float* h, const View& b,
                          int64_t rank, int64_t n, bool accumulate) {
    for_lanes(live, [&](auto get, auto put) {
        Vec y = sums;
        if (accumulate) y += get(to);
        if (bias) y += get(bias);
        for (int64_t j = 0; j < rank; j++) y += h[j] * get(b.row<float>(j) + n);
        put(to, y);
    });
}

// out (t, N) (+)= x (t, K) W^T + bias + h (t, r) b (r, N). A stored row is multiplied by T rows of x at once; `Rows`
// may be limited to that many.
template <class Rows, int T>
void linear_skinny(const View& x, const Matrix& w, const float* bias, const View& h, const View& b, const View& out,
                   bool accumulate) {
    // The caller's own scratch; the units below must not request any.
    const int64_t rank = h ? h.cols : 0, prepared = prepared_bytes<Rows>(x.rows, x.cols);
    auto* scratch = static_cast<uint8_t*>(thread_scratch(size_t(skinny_scratch<Rows>(x.rows, x.cols, rank))));
    const Rows stored(x, scratch);
    float* factors = reinterpret_cast<float*>(scratch + prepared);
    if (h) widen_rows(h, h.rows, rank, factors);
    constexpr int64_t kUnitBytes = 32 * 1024;  // many units, the same number for each thread
    const int64_t units = round_up(std::max<int64_t>(1, w.rows * w.row_bytes / kUnitBytes), threads());
    const int64_t rows = round_up((w.rows + units - 1) / units, kLanes);
    parallel_for((w.rows + rows - 1) / rows, [&](int64_t unit) {
        const int64_t end = std::min(w.rows, (unit + 1) * rows);
        for (int64_t n = unit * rows; n < end; n += kLanes) {
            const int64_t live = std::min<int64_t>(kLanes, end - n);
            const uint8_t* row = w.row(n);
            for (int64_t first = 0; first < x.rows; first += T) {
                Vec dots[T][kLanes] = {};
                for (int64_t i = 0; i < live && x.cols; i++) {
                    Vec sums[T];
                    stored.dot(row + i * w.row_bytes, first, sums);
                    for (int t = 0; t < T; t++) dots[t][i] = sums[t];
                }
                for (int64_t t = first; t < std::min(x.rows, first + T); t++) {
                    const Vec sums = x.cols ? lane_sums(dots[t - first]) : Vec{};  // without x, only h b is added
                    finish_row(sums, live, out.row<float>(t) + n, bias ? bias + n : nullptr, factors + t * rank, b,
                               rank, n, accumulate);
                }
            }
        }
    });
}

}  // namespace fb::FB_ISA
