#include "simd/table.h"

#define FB_STRING_(x) #x
#define FB_STRING(x) FB_STRING_(x)
#define FB_JOIN_(a, b) a##b
#define FB_JOIN(a, b) FB_JOIN_(a, b)

namespace fb {

const Ops* FB_JOIN(FB_ISA, _ops)() {
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
                           add,
                           sum_squares,
                           adamw,
                           sgd};
    return &table;
}

}  // namespace fb
