#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

struct Gradients {
    Vec a, dgate, dup;
};

// a = g sigmoid(z(g)) u.   da/du = g sigmoid(z);   da/dg = u sigmoid(z) (1 + g z'(g) (1 - sigmoid(z))).
template <class Z>
struct Sigmoidal {
    FB_INLINE static Vec forward(Vec g, Vec u) { return g * sigmoid(Z::z(g)) * u; }
    FB_INLINE static Gradients backward(Vec grad, Vec g, Vec u) {
        const Vec s = sigmoid(Z::z(g));
        return {g * s * u, grad * u * s * (1.0f + Z::g_times_slope(g) * (1.0f - s)), grad * g * s};
    }
};

struct Silu {
    FB_INLINE static Vec z(Vec g) { return g; }
    FB_INLINE static Vec g_times_slope(Vec g) { return g; }
};

// z = 2 u, u = sqrt(2 / pi) (g + 0.044715 g^3), since (1 + tanh u) / 2 = sigmoid(2 u).
struct GeluTanh {
    static constexpr float kLinear = 1.595769122f, kCubic = kLinear * 0.044715f;
    // Beyond this the sigmoid is 0 or 1, and the cube might overflow.
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

// a = g c u, c = erfc(-g / sqrt 2) / 2.   da/dg = (c + g exp(-g^2 / 2) / sqrt(2 pi)) u.
// erfc(z) = t exp(-z^2 + a polynomial of t), t = 1 / (1 + z / 2), for z >= 0; its relative error is below 1.2e-7.
// b^2 is h^2 + (b - h) (b + h), with h^2 / 2 exact, so that exp(-b^2 / 2) is exact to rounding where it is small, too.
struct Gelu {
    static constexpr float kMagic = 49152;  // 1.5 * 2^15: adding it rounds to a multiple of 2^-8
    struct Parts {
        Vec cumulative, bell;  // c, and exp(-b^2 / 2)
    };
    // Beyond these limits c is 0 or 1.
    FB_INLINE static Vec at_least(Vec g) { return g < splat(-13.0f) ? splat(-13.0f) : g; }
    FB_INLINE static Vec bounded(Vec g) { return g > splat(13.0f) ? splat(13.0f) : at_least(g); }
    FB_INLINE static Parts parts(Vec b) {
        const Vec h = (b + kMagic) - kMagic, large = exp(-0.5f * h * h), rest = -0.5f * (b - h) * (b + h);
        const Vec z = 0.70710678f * (b < splat(0.0f) ? -b : b), t = 1.0f / (1.0f + 0.5f * z);
        Vec sum = splat(0.17087277f);
        for (const float c : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f,
                              0.37409196f, 1.00002368f, -1.26551223f})
            sum = sum * t + c;
        const Vec tail = 0.5f * t * exp(sum + rest) * large;
        return {b < splat(0.0f) ? tail : 1.0f - tail, exp(rest) * large};
    }
    FB_INLINE static Vec forward(Vec g, Vec u) { return at_least(g) * parts(bounded(g)).cumulative * u; }
    FB_INLINE static Gradients backward(Vec grad, Vec g, Vec u) {
        const Vec b = bounded(g);
        const Parts p = parts(b);
        const Vec value = at_least(g) * p.cumulative;
        return {value * u, grad * u * (p.cumulative + b * (0.39894228f * p.bell)), grad * value};
    }
};

// a = r^2 u, r = relu(g).   da/du = r^2;   da/dg = 2 r u.   NaN stays NaN.
struct Relu2 {
    FB_INLINE static Vec relu(Vec g) { return g < splat(0.0f) ? splat(0.0f) : g; }
    FB_INLINE static Vec forward(Vec g, Vec u) { return relu(g) * relu(g) * u; }
    FB_INLINE static Gradients backward(Vec grad, Vec g, Vec u) {
        const Vec r = relu(g);
        return {r * r * u, 2.0f * grad * u * r, grad * r * r};
    }
};

// a = c sigmoid(1.702 c) (v + 1), c = min(g, 7), v = u clipped to [-7, 7].   No gradient beyond the clips; NaN stays
// NaN.
struct ClippedSilu {
    static constexpr float kGain = 1.702f, kClip = 7;
    // 1.702 c; far below, the sigmoid is 0, and the product might overflow.
    FB_INLINE static Vec z(Vec c) { return kGain * (c < splat(-100.0f) ? splat(-100.0f) : c); }
    FB_INLINE static Vec clipped(Vec g) { return g > splat(kClip) ? splat(kClip) : g; }
    FB_INLINE static Vec factor(Vec u) { return 1.0f + clipped(u < splat(-kClip) ? splat(-kClip) : u); }
    FB_INLINE static Vec forward(Vec g, Vec u) {
        const Vec c = clipped(g);
        return c * sigmoid(z(c)) * factor(u);
    }
    FB_INLINE static Gradients backward(Vec grad, Vec g, Vec u) {
        const Vec c = clipped(g), s = sigmoid(z(c)), f = factor(u), none{};
        const Vec dgate = grad * f * s * (1.0f + z(c) * (1.0f - s)), dup = grad * c * s;
        return {c * s * f, g > splat(kClip) ? none : dgate, ((u > splat(kClip)) | (u < splat(-kClip))) ? none : dup};
    }
};

// body(tag of gate's elements, tag of the output's, activation)
template <class Body>
void by_types(Activation activation, const View& gate, const View& out, const Body& body) {
    by_dtype(gate.dtype, [&](auto* gate_tag) {
        by_dtype(out.dtype, [&](auto* out_tag) {
            switch (activation) {
                case Activation::silu: return body(gate_tag, out_tag, Sigmoidal<Silu>());
                case Activation::gelu: return body(gate_tag, out_tag, Gelu());
                case Activation::gelu_tanh: return body(gate_tag, out_tag, Sigmoidal<GeluTanh>());
                case Activation::relu2: return body(gate_tag, out_tag, Relu2());
                case Activation::clipped_silu: return body(gate_tag, out_tag, ClippedSilu());
            }
        });
    });
}

}  // namespace

void glu(View gate, View up, Activation activation, View out) {
    by_types(activation, gate, out, [&](auto* gate_tag, auto* out_tag, auto form) {
        using G = std::remove_pointer_t<decltype(gate_tag)>;
        using O = std::remove_pointer_t<decltype(out_tag)>;
        by_flag(bool(up), [&](auto gated) {
            parallel_rows(gate.rows, gate.cols, [&](int64_t t) {
                for_lanes(gate.cols, [&](auto get, auto put) {
                    Vec factor = splat(1.0f);
                    if constexpr (gated()) factor = get(up.row<G>(t));
                    put(out.row<O>(t), form.forward(get(gate.row<G>(t)), factor));
                });
            });
        });
    });
}

void glu_backward(View da, View gate, View up, Activation activation, View dgate, View dup, View a) {
    by_types(activation, gate, dgate, [&](auto* gate_tag, auto* out_tag, auto form) {
        using G = std::remove_pointer_t<decltype(gate_tag)>;
        using O = std::remove_pointer_t<decltype(out_tag)>;
        by_flag(bool(up), [&](auto gated) {
            parallel_rows(gate.rows, gate.cols, [&](int64_t t) {
                for_lanes(gate.cols, [&](auto get, auto put) {
                    Vec factor = splat(1.0f);
                    if constexpr (gated()) factor = get(up.row<G>(t));
                    const Gradients found = form.backward(get(da.row<float>(t)), get(gate.row<G>(t)), factor);
                    if (a) put(a.row<O>(t), found.a);  // as in glu
                    if constexpr (gated()) put(dup.row<O>(t), found.dup);
                    put(dgate.row<O>(t), found.dgate);
                });
            });
        });
    });
}

}  // namespace fb::FB_ISA
