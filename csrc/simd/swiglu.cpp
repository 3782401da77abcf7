#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {

void swiglu(View gate, View up, View out) {
    by_dtype(out.dtype, [&](auto* tag) {
        using O = std::remove_pointer_t<decltype(tag)>;
        parallel_rows(gate.rows, gate.cols, [&](int64_t t) {
            for_lanes(gate.cols, [&](auto get, auto put) {
                const Vec g = get(gate.row<float>(t));
                put(out.row<O>(t), g * sigmoid(g) * get(up.row<float>(t)));
            });
        });
    });
}

// Forward: a = g sigmoid(g) u.  da/du = g sigmoid(g);  da/dg = u sigmoid(g) (1 + g (1 - sigmoid(g))).
void swiglu_backward(View da, View gate, View up, View dgate, View dup, View a) {
    by_dtype(dgate.dtype, [&](auto* tag) {
        using O = std::remove_pointer_t<decltype(tag)>;
        parallel_rows(gate.rows, gate.cols, [&](int64_t t) {
            for_lanes(gate.cols, [&](auto get, auto put) {
                const Vec g = get(gate.row<float>(t)), grad = get(da.row<float>(t)), s = sigmoid(g);
                const Vec u = get(up.row<float>(t));
                if (a) put(a.row<O>(t), g * s * u);  // as swiglu does
                put(dup.row<O>(t), grad * g * s);
                put(dgate.row<O>(t), grad * u * s * (1.0f + g * (1.0f - s)));
            });
        });
    });
}

}  // namespace fb::FB_ISA
