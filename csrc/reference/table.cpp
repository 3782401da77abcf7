#include "reference/reference.h"

namespace fb {

const Ops* reference_ops() {
    static const Ops table = [] {
        Ops ops;
        ops.name = "reference";
#define FB_OP(operation, result, parameters) ops.operation = reference::operation;
#include "core/ops.def"
        return ops;
    }();
    return &table;
}

}  // namespace fb
