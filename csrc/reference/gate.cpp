#include <cmath>

#include "reference/reference.h"

namespace fb::reference {
namespace {

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

double value(Gate form, double z) { return form == Gate::silu ? z * sigmoid(z) : sigmoid(z); }

double slope(Gate form, double z) {
    const double of_sigmoid = sigmoid(z) * sigmoid(-z);
    return form == Gate::silu ? sigmoid(z) + z * of_sigmoid : of_sigmoid;
}

}  // namespace

// out (T,F) = x form(z)
void gate(View z, View x, Gate form, View out) {
    for (int64_t t = 0; t < z.rows; ++t)
        for (int64_t f = 0; f < z.cols; ++f) store(out, t, f, (x ? load(x, t, f) : 1) * value(form, load(z, t, f)));
}

// Forward: a = x form(z).   dz = da x form'(z),   dx = da form(z)
void gate_backward(View da, View z, View x, Gate form, View dz, View dx) {
    for (int64_t t = 0; t < z.rows; ++t)
        for (int64_t f = 0; f < z.cols; ++f) {
            const double d = load(da, t, f), at = load(z, t, f);
            store(dz, t, f, d * (x ? load(x, t, f) : 1) * slope(form, at));
            if (dx) store(dx, t, f, d * value(form, at));
        }
}

}  // namespace fb::reference
