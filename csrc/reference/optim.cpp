#include <cmath>

#include "reference/reference.h"

namespace fb::reference {

// g = grad_scale * grad;   m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2
// param = (1 - lr * weight_decay) * param - lr * (m / correction1) / (sqrt(v / correction2) + eps)
void adamw(View grad, const AdamW& o, View param, View m, View v) {
    for (int64_t r = 0; r < param.rows; ++r) {
        for (int64_t c = 0; c < param.cols; ++c) {
            const double g = double(o.grad_scale) * load(grad, r, c);
            const double mean = double(o.beta1) * load(m, r, c) + (1 - double(o.beta1)) * g;
            const double square = double(o.beta2) * load(v, r, c) + (1 - double(o.beta2)) * g * g;
            const double decayed = load(param, r, c) * (1 - double(o.lr) * double(o.weight_decay));
            const double update =
                mean / double(o.correction1) / (std::sqrt(square / double(o.correction2)) + double(o.eps));
            store(m, r, c, mean);
            store(v, r, c, square);
            store(param, r, c, decayed - double(o.lr) * update);
        }
    }
}

// param -= lr * (grad_scale * grad + weight_decay * param)
void sgd(View grad, float lr, float weight_decay, float grad_scale, View param) {
    for (int64_t r = 0; r < param.rows; ++r) {
        for (int64_t c = 0; c < param.cols; ++c) {
            const double p = load(param, r, c);
            const double step = double(grad_scale) * load(grad, r, c) + double(weight_decay) * p;
            store(param, r, c, p - double(lr) * step);
        }
    }
}

}  // namespace fb::reference
