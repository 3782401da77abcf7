#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

// Both activations are g sigmoid(z(g)), with the derivative sigmoid(z) (1 + g z'(g) (1 - sigmoid(z))).
struct Silu {
    FB_INLINE static Vec z(Vec g) { return g; }
    FB_INLINE static Vec g_times_slope(Vec g) { return g; }
};

// z = 2 u, u = sqrt(2 / pi) (g + 0.044715 g^3), since (1 + tanh u) / 2 = sigmoid(2 u).
struct GeluTanh {
    static constexpr float kLinear = 1.595769122f, kCubic = kLinear * 0.044715f;
    // Further out the sigmoid is 0 or 1, and the cube need not overflow.
    FB_INLINE static Vec bounded(Vec g) {
        return g < splat(-30.0f) ? splat(-30.0f) : (g > splat(30.0f) ? splat(30.0f) : g);
    }
    FB_INLINE static Vec z(Vec g) {
        const Vec b = bounded(g);
        return b * (kLinear + kCubic * b * b);
    }
    FB_INLINE static Vec g_times_slope(Vec g) {
        const Vec b = bounded(g);
        return b * (kLinear + 3 * kCubic * b * b);
    }
};

// body(tag of gate's elements, tag of the output's, activation)
template <class Body>
void by_types(Activation activation, const View& gate, const View& out, const Body& body) {
    by_dtype(gate.dtype, [&](auto* gate_tag) {
        by_dtype(out.dtype, [&](auto* out_tag) {
            if (activation == Activation::silu) body(gate_tag, out_tag, Silu());
            else body(gate_tag, out_tag, GeluTanh());
        });
    });
}

}  // namespace

void glu(View gate, View up, Activation activation, View out) {
    by_types(activation, gate, out, [&](auto* gate_tag, auto* out_tag, auto form) {
        using G = std::remove_pointer_t<decltype(gate_tag)>;
        using O = std::remove_pointer_t<decltype(out_tag)>;
        parallel_rows(gate.rows, gate.cols, [&](int64_t t) {
            for_lanes(gate.cols, [&](auto get, auto put) {
                const Vec g = get(gate.row<G>(t));
                put(out.row<O>(t), g * sigmoid(form.z(g)) * get(up.row<G>(t)));
            });
        });
    });
}

// Forward: a = g sigmoid(z) u.  da/du = g sigmoid(z);  da/dg = u sigmoid(z) (1 + g z' (1 - sigmoid(z))).
void glu_backward(View da, View gate, View up, Activation activation, View dgate, View dup, View a) {
    by_types(activation, gate, dgate, [&](auto* gate_tag, auto* out_tag, auto form) {
        using G = std::remove_pointer_t<decltype(gate_tag)>;
        using O = std::remove_pointer_t<decltype(out_tag)>;
        parallel_rows(gate.rows, gate.cols, [&](int64_t t) {
            for_lanes(gate.cols, [&](auto get, auto put) {
                const Vec g = get(gate.row<G>(t)), grad = get(da.row<float>(t)), s = sigmoid(form.z(g));
                const Vec u = get(up.row<G>(t));
                if (a) put(a.row<O>(t), g * s * u);  // as glu does
                put(dup.row<O>(t), grad * g * s);
                put(dgate.row<O>(t), grad * u * s * (1.0f + form.g_times_slope(g) * (1.0f - s)));
            });
        });
    });
}

}  // namespace fb::FB_ISA
