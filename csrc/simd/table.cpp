#include "simd/table.h"

namespace fb {

const Ops* FB_OPS(FB_ISA)() {
    using namespace FB_ISA;
    static const Ops table{FB_STRING(FB_ISA),
                           linear,
                           linear_backward,
                           lora_down,
                           lora_gradient,
                           rms_norm,
                           rms_norm_backward,
                           rope,
                           swiglu,
                           swiglu_backward,
                           attention,
                           attention_backward,
                           cross_entropy_tile,
                           cross_entropy_finish,
                           gather_rows,
                           dequantize,
                           cast,
                           sum_squares,
                           adamw,
                           sgd};
    return &table;
}

}  // namespace fb
