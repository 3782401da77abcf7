#include <cmath>

#include "reference/reference.h"

namespace fb::reference {

// 1 / sqrt(mean(x^2) + eps) of row t.
static double inverse_rms(const View& x, int64_t t, float eps) {
    double squares = 0;
    for (int64_t i = 0; i < x.cols; ++i) squares += load(x, t, i) * load(x, t, i);
    return 1 / std::sqrt(squares / double(x.cols) + double(eps));
}

// out (T,D) = x * weight / sqrt(mean(x^2) + eps)
void rms_norm(View x, const float* weight, float eps, View out) {
    for (int64_t t = 0; t < x.rows; ++t) {
        const double rstd = inverse_rms(x, t, eps);
        for (int64_t i = 0; i < x.cols; ++i) store(out, t, i, load(x, t, i) * rstd * weight[i]);
    }
}

// Forward: n = x * rstd * weight, rstd = (mean(x^2) + eps)^(-1/2).
// With g = dn * weight:   dx += rstd * (g - x * rstd^2 * mean(g * x))
void rms_norm_backward(View dn, View x, const float* weight, float eps, View dx) {
    for (int64_t t = 0; t < x.rows; ++t) {
        const double rstd = inverse_rms(x, t, eps);
        double mean = 0;  // of g * x
        for (int64_t i = 0; i < x.cols; ++i) mean += load(dn, t, i) * weight[i] * load(x, t, i);
        mean /= double(x.cols);
        for (int64_t i = 0; i < x.cols; ++i) {
            const double g = load(dn, t, i) * weight[i];
            write(dx, t, i, rstd * (g - load(x, t, i) * rstd * rstd * mean), true);
        }
    }
}

}  // namespace fb::reference
