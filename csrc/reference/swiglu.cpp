#include <cmath>

#include "reference/reference.h"

namespace fb::reference {

static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// out (T,F) = silu(gate) * up,   silu(g) = g * sigmoid(g)
void swiglu(View gate, View up, View out) {
    for (int64_t t = 0; t < gate.rows; ++t) {
        for (int64_t f = 0; f < gate.cols; ++f) {
            const double g = load(gate, t, f);
            store(out, t, f, g * sigmoid(g) * load(up, t, f));
        }
    }
}

// Forward: a = silu(gate) * up.   dup = da * silu(gate),   dgate = da * up * silu'(gate),
// silu'(g) = sigmoid(g) * (1 + g * (1 - sigmoid(g)))
void swiglu_backward(View da, View gate, View up, View dgate, View dup, View a) {
    for (int64_t t = 0; t < gate.rows; ++t) {
        for (int64_t f = 0; f < gate.cols; ++f) {
            const double d = load(da, t, f), g = load(gate, t, f), u = load(up, t, f), s = sigmoid(g);
            store(dgate, t, f, d * u * s * (1 + g * (1 - s)));
            store(dup, t, f, d * g * s);
            if (a) store(a, t, f, g * s * u);
        }
    }
}

}  // namespace fb::reference
