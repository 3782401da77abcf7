#include <cmath>
#include <utility>

#include "reference/reference.h"

namespace fb::reference {

// 1 / sqrt(mean(x^2) + eps) of `count` columns of row t.
static double inverse_rms(const View& x, int64_t t, int64_t first, int64_t count, float eps) {
    double squares = 0;
    for (int64_t i = first; i < first + count; ++i) squares += load(x, t, i) * load(x, t, i);
    return 1 / std::sqrt(squares / double(count) + double(eps));
}

// out (T,D) (+)= x * weight / sqrt(mean(x^2) + eps), separately for each group of weight.cols columns
void rms_norm(View x, View weight, float eps, View out, bool accumulate) {
    const int64_t count = weight.cols;
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t first = 0; first < x.cols; first += count) {
            const double rstd = inverse_rms(x, t, first, count, eps);
            for (int64_t i = 0; i < count; ++i)
                write(out, t, first + i, load(x, t, first + i) * rstd * load(weight, 0, i), accumulate);
        }
    }
}

// Forward: n = x * rstd * weight, rstd = (mean(x^2) + eps)^(-1/2).
// With g = dn * weight:   dx (+)= rstd * (g - x * rstd^2 * mean(g * x))
void rms_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate) {
    const int64_t count = weight.cols;
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t first = 0; first < x.cols; first += count) {
            const double rstd = inverse_rms(x, t, first, count, eps);
            double mean = 0;  // mean of g * x
            for (int64_t i = 0; i < count; ++i)
                mean += load(dn, t, first + i) * load(weight, 0, i) * load(x, t, first + i);
            mean /= double(count);
            for (int64_t i = 0; i < count; ++i) {
                const double g = load(dn, t, first + i) * load(weight, 0, i);
                write(dx, t, first + i, rstd * (g - load(x, t, first + i) * rstd * rstd * mean), accumulate);
            }
        }
    }
}

// Mean, and 1 / sqrt(mean((x - mean)^2) + eps), of row t.
static std::pair<double, double> moments(const View& x, int64_t t, float eps) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < x.cols; ++i) mean += load(x, t, i);
    mean /= double(x.cols);
    for (int64_t i = 0; i < x.cols; ++i) squares += (load(x, t, i) - mean) * (load(x, t, i) - mean);
    return {mean, 1 / std::sqrt(squares / double(x.cols) + double(eps))};
}

// out (T,D) = (x - mean) * rstd * weight + bias
void layer_norm(View x, View weight, View bias, float eps, View out) {
    for (int64_t t = 0; t < x.rows; ++t) {
        const auto [mean, rstd] = moments(x, t, eps);
        for (int64_t i = 0; i < x.cols; ++i)
            store(out, t, i, (load(x, t, i) - mean) * rstd * load(weight, 0, i) + (bias ? load(bias, 0, i) : 0));
    }
}

// Forward: n = u * weight + bias, u = (x - mean) * rstd.
// With g = dn * weight:   dx (+)= rstd * (g - mean(g) - u * mean(g * u))
void layer_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate) {
    for (int64_t t = 0; t < x.rows; ++t) {
        const auto [mean, rstd] = moments(x, t, eps);
        double pull = 0, shift = 0;  // means of g * u and g
        for (int64_t i = 0; i < x.cols; ++i) {
            const double g = load(dn, t, i) * load(weight, 0, i);
            pull += g * (load(x, t, i) - mean) * rstd;
            shift += g;
        }
        pull /= double(x.cols);
        shift /= double(x.cols);
        for (int64_t i = 0; i < x.cols; ++i) {
            const double g = load(dn, t, i) * load(weight, 0, i), u = (load(x, t, i) - mean) * rstd;
            write(dx, t, i, rstd * (g - shift - u * pull), accumulate);
        }
    }
}

}  // namespace fb::reference
