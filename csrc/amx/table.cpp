// The table of an instruction set that differs from another, FB_BASE, in its matrix products alone.
#include "simd/table.h"

namespace fb {

const Ops* FB_OPS(FB_BASE)();

const Ops* FB_OPS(FB_ISA)() {
    static const Ops table = [] {
        Ops ops = *FB_OPS(FB_BASE)();
        ops.name = FB_STRING(FB_ISA);
        ops.linear = FB_ISA::linear;
        ops.linear_backward = FB_ISA::linear_backward;
        ops.linear_cost = FB_ISA::linear_cost;
        ops.linear_backward_cost = FB_ISA::linear_backward_cost;
        return ops;
    }();
    return &table;
}

}  // namespace fb
