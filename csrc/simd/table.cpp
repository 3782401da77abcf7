#include "simd/table.h"

namespace fb {

const Ops* FB_OPS(FB_ISA)() {
    static const Ops table = [] {
        Ops ops;
        ops.name = FB_STRING(FB_ISA);
#define FB_OP(operation, result, parameters) ops.operation = FB_ISA::operation;
#include "core/ops.def"
        return ops;
    }();
    return &table;
}

}  // namespace fb
