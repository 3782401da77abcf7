#include <algorithm>
#include <cmath>

#include "reference/reference.h"

namespace fb::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

// k_t = (1 - bound) sigmoid(-f_t),   h_t = (1 - k_t) h_{t-1} + silu(i_t) k_t
void gated_recurrence(View i, View f, const float* bound, float* state, View h) {
    for (int64_t c = 0; c < i.cols; ++c) {
        double now = double(state[c]);
        for (int64_t t = 0; t < i.rows; ++t) {
            const double k = (1 - double(bound[c])) * sigmoid(-load(f, t, c)), x = load(i, t, c);
            now = (1 - k) * now + x * sigmoid(x) * k;
            store(h, t, c, now);
        }
        state[c] = float(now);
    }
}

// With d, the gradient of h_t from row t and from the rows behind it:
//   di = d k silu'(i),   dk = d (silu(i) - h_{t-1}),   df = -dk k sigmoid(f),   and h_{t-1} gets (1 - k) d
void gated_recurrence_backward(View dh, View i, View f, const float* bound, const float* before, View h, float* carry,
                               View di, View df) {
    for (int64_t c = 0; c < i.cols; ++c) {
        double behind = double(carry[c]);
        for (int64_t t = i.rows - 1; t >= 0; --t) {
            const double x = load(i, t, c), gate = load(f, t, c), earlier = t ? load(h, t - 1, c) : double(before[c]);
            const double k = (1 - double(bound[c])) * sigmoid(-gate), d = load(dh, t, c) + behind;
            store(di, t, c, d * k * sigmoid(x) * (1 + x * (1 - sigmoid(x))));
            store(df, t, c, -d * (x * sigmoid(x) - earlier) * k * sigmoid(gate));
            behind = (1 - k) * d;
        }
        carry[c] = float(behind);
    }
}

// out (T,K) = nearest(x s) / s, s = 127 / max(max |x|, 1e-5), in float32
void round_rows(View x, View out) {
    for (int64_t t = 0; t < x.rows; ++t) {
        float most = 1e-5f;
        bool finite = true;
        for (int64_t c = 0; c < x.cols; ++c) {
            const float value = float(load(x, t, c));
            finite = finite && std::isfinite(value);
            most = std::max(most, std::abs(value));
        }
        const float s = 127.0f / most;
        for (int64_t c = 0; c < x.cols; ++c) {
            const auto code = finite ? std::clamp(float(std::lrint(float(load(x, t, c)) * s)), -128.0f, 127.0f) : NAN;
            store(out, t, c, double(code / s));
        }
    }
}

}  // namespace fb::reference
