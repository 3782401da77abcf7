#include <cmath>

#include "reference/reference.h"

namespace fb::reference {
namespace {

struct Unit {
    double a, dgate, dup;  // a, and its derivatives
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// min and max of std would replace NaN.
double at_most(double x, double limit) { return x > limit ? limit : x; }
double at_least(double x, double limit) { return x < limit ? limit : x; }

// a = act(g) u, with
//   silu(g) = g sigmoid(g),                     silu'(g) = sigmoid(g) (1 + g (1 - sigmoid(g)))
//   gelu(g) = g c,  c = erfc(-g / sqrt 2) / 2,  gelu'(g) = c + g exp(-g^2 / 2) / sqrt(2 pi)
//   gelu_tanh(g) = g (1 + tanh w) / 2,          gelu_tanh'(g) = (1 + tanh w) / 2 + g (1 - tanh^2 w) w' / 2
//     w = sqrt(2 / pi) (g + 0.044715 g^3),      w' = sqrt(2 / pi) (1 + 3 * 0.044715 g^2)
//   relu2(g) = relu(g)^2,                       relu2'(g) = 2 relu(g)
// Neither side cancels: (1 + tanh w) / 2 = sigmoid(2w), (1 - tanh w) / 2 = sigmoid(-2w).
// clipped_silu: a = c sigmoid(1.702 c) (v + 1), c = min(g, 7), v = u clipped to [-7, 7]; beyond a clip, no gradient
Unit unit(Activation activation, double g, double u) {
    switch (activation) {
        case Activation::silu: {
            const double s = sigmoid(g);
            return {g * s * u, s * (1 + g * (1 - s)) * u, g * s};
        }
        case Activation::gelu: {
            const double c = std::erfc(-g / std::sqrt(2.0)) / 2;
            const double density = std::exp(-g * g / 2) / std::sqrt(2 * std::acos(-1.0));
            return {g * c * u, (c + g * density) * u, g * c};
        }
        case Activation::gelu_tanh: {
            const double root = std::sqrt(2 / std::acos(-1.0)), cube = 0.044715;
            const double w = root * (g + cube * g * g * g), dw = root * (1 + 3 * cube * g * g);
            const double s = sigmoid(2 * w);
            return {g * s * u, (s + g * 2 * s * sigmoid(-2 * w) * dw) * u, g * s};
        }
        case Activation::relu2: {
            const double r = at_least(g, 0);
            return {r * r * u, 2 * r * u, r * r};
        }
        case Activation::clipped_silu: {
            const double gain = 1.702, clip = 7;
            const double c = at_most(g, clip), v = at_least(at_most(u, clip), -clip), s = sigmoid(gain * c);
            return {c * s * (v + 1), g > clip ? 0 : (v + 1) * s * (1 + gain * c * (1 - s)),
                    u > clip || u < -clip ? 0 : c * s};
        }
    }
    return {};
}

}  // namespace

// out (T,F) = a
void glu(View gate, View up, Activation activation, View out) {
    for (int64_t t = 0; t < gate.rows; ++t) {
        for (int64_t f = 0; f < gate.cols; ++f) {
            store(out, t, f, unit(activation, load(gate, t, f), up ? load(up, t, f) : 1).a);
        }
    }
}

// Forward: a.   dup = da * (its derivative by up),   dgate = da * (its derivative by gate)
void glu_backward(View da, View gate, View up, Activation activation, View dgate, View dup, View a) {
    for (int64_t t = 0; t < gate.rows; ++t) {
        for (int64_t f = 0; f < gate.cols; ++f) {
            const double d = load(da, t, f);
            const Unit found = unit(activation, load(gate, t, f), up ? load(up, t, f) : 1);
            store(dgate, t, f, d * found.dgate);
            if (dup) store(dup, t, f, d * found.dup);
            if (a) store(a, t, f, found.a);
        }
    }
}

}  // namespace fb::reference
