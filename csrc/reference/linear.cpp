#include <vector>

#include "quant/decode.h"
#include "reference/reference.h"

namespace fb::reference {

// out (T,N) (+)= x (T,K) W^T + bias (N) + h (T,r) b (r,N)
void linear(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
    std::vector<float> weights(size_t(w.cols));  // one row of W
    for (int64_t n = 0; n < w.rows; ++n) {
        decode_row(w.type, w.row(n), 0, w.cols, weights.data());
        for (int64_t t = 0; t < x.rows; ++t) {
            double sum = bias ? bias[n] : 0.0;
            for (int64_t k = 0; k < w.cols; ++k) sum += load(x, t, k) * weights[size_t(k)];
            if (h) {
                for (int64_t r = 0; r < h.cols; ++r) sum += load(h, t, r) * load(b, r, n);
            }
            write(out, t, n, sum, accumulate);
        }
    }
}

// Forward: y = x W^T + h b, h = x a^T (scale is part of dh).   dx (T,K) (+)= dy (T,N) W + dh (T,r) a (r,K)
void linear_backward(View dy, Matrix w, View dh, View a, View dx, bool accumulate) {
    std::vector<float> weights(size_t(w.cols));
    std::vector<double> sums(size_t(dy.rows * w.cols));  // (T, K)
    for (int64_t n = 0; n < w.rows; ++n) {
        decode_row(w.type, w.row(n), 0, w.cols, weights.data());
        for (int64_t t = 0; t < dy.rows; ++t) {
            const double d = load(dy, t, n);
            for (int64_t k = 0; k < w.cols; ++k) sums[size_t(t * w.cols + k)] += d * weights[size_t(k)];
        }
    }
    for (int64_t t = 0; t < dy.rows; ++t) {
        for (int64_t k = 0; k < w.cols; ++k) {
            double sum = sums[size_t(t * w.cols + k)];
            if (dh) {
                for (int64_t r = 0; r < dh.cols; ++r) sum += load(dh, t, r) * load(a, r, k);
            }
            write(dx, t, k, sum, accumulate);
        }
    }
}

}  // namespace fb::reference
