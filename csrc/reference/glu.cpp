#include <cmath>

#include "reference/reference.h"

namespace fb::reference {
namespace {

struct Gate {
    double value, slope;
};

// silu(g) = g sigmoid(g),                       silu'(g) = sigmoid(g) (1 + g (1 - sigmoid(g)))
// gelu_tanh(g) = g (1 + tanh u) / 2,            gelu_tanh'(g) = (1 + tanh u) / 2 + g (1 - tanh^2 u) u' / 2
//   u = sqrt(2 / pi) (g + 0.044715 g^3),        u' = sqrt(2 / pi) (1 + 3 * 0.044715 g^2)
// Neither side cancels: (1 + tanh u) / 2 = sigmoid(2u), (1 - tanh u) / 2 = sigmoid(-2u).
Gate activate(Activation activation, double g) {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    if (activation == Activation::silu) return {g * sigmoid(g), sigmoid(g) * (1 + g * (1 - sigmoid(g)))};
    const double root = std::sqrt(2 / std::acos(-1.0)), cube = 0.044715;
    const double u = root * (g + cube * g * g * g), du = root * (1 + 3 * cube * g * g);
    return {g * sigmoid(2 * u), sigmoid(2 * u) + g * 2 * sigmoid(2 * u) * sigmoid(-2 * u) * du};
}

}  // namespace

// out (T,F) = activation(gate) * up
void glu(View gate, View up, Activation activation, View out) {
    for (int64_t t = 0; t < gate.rows; ++t) {
        for (int64_t f = 0; f < gate.cols; ++f) {
            store(out, t, f, activate(activation, load(gate, t, f)).value * load(up, t, f));
        }
    }
}

// Forward: a = activation(gate) * up.   dup = da * activation(gate),   dgate = da * up * activation'(gate)
void glu_backward(View da, View gate, View up, Activation activation, View dgate, View dup, View a) {
    for (int64_t t = 0; t < gate.rows; ++t) {
        for (int64_t f = 0; f < gate.cols; ++f) {
            const double d = load(da, t, f), u = load(up, t, f);
            const Gate g = activate(activation, load(gate, t, f));
            store(dgate, t, f, d * u * g.slope);
            store(dup, t, f, d * g.value);
            if (a) store(a, t, f, g.value * u);
        }
    }
}

}  // namespace fb::reference
