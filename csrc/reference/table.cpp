#include "reference/reference.h"

namespace fb {

const Ops* reference_ops() {
    static const Ops ops = [] {
        Ops o{};
        o.name = "reference";
        o.linear = reference::linear;
        o.linear_backward = reference::linear_backward;
        o.lora_down = reference::lora_down;
        o.lora_gradient = reference::lora_gradient;
        o.rms_norm = reference::rms_norm;
        o.rms_norm_backward = reference::rms_norm_backward;
        o.rope = reference::rope;
        o.swiglu = reference::swiglu;
        o.swiglu_backward = reference::swiglu_backward;
        o.attention = reference::attention;
        o.attention_backward = reference::attention_backward;
        o.cross_entropy_tile = reference::cross_entropy_tile;
        o.cross_entropy_finish = reference::cross_entropy_finish;
        o.gather_rows = reference::gather_rows;
        o.dequantize = reference::dequantize;
        o.cast = reference::cast;
        o.sum_squares = reference::sum_squares;
        o.adamw = reference::adamw;
        o.sgd = reference::sgd;
        return o;
    }();
    return &ops;
}

}  // namespace fb
