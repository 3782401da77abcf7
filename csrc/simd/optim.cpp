#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
void adamw(View grad, const AdamW& o, View param, View m, View v) {
    parallel_rows(param.rows, param.cols, [&](int64_t t) {
        float *p = param.row<float>(t), *first = m.row<float>(t), *second = v.row<float>(t);
        for_lanes(param.cols, [&](auto get, auto put) {
            const Vec g = get(grad.row<float>(t)) * o.grad_scale;
            const Vec mean = get(first) * o.beta1 + g * (1.0f - o.beta1);
            const Vec square = get(second) * o.beta2 + g * g * (1.0f - o.beta2);
            put(first, mean);
            put(second, square);
            const Vec step = (mean / o.correction1) / (square_root(square / o.correction2) + o.eps);
            put(p, get(p) * (1.0f - o.lr * o.weight_decay) - step * o.lr);
        });
    });
}

void sgd(View grad, float lr, float weight_decay, float grad_scale, View param) {
    parallel_rows(param.rows, param.cols, [&](int64_t t) {
        float* p = param.row<float>(t);
        for_lanes(param.cols, [&](auto get, auto put) {
            put(p, get(p) * (1.0f - lr * weight_decay) - get(grad.row<float>(t)) * (lr * grad_scale));
        });
    });
}

}  // namespace fb::FB_ISA
