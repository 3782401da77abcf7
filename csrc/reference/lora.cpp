#include "reference/reference.h"

namespace fb::reference {

// h (T,r) (+)= scale * x (T,K) a (r,K)^T
void lora_in(View x, View a, float scale, View h, bool accumulate) {
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t r = 0; r < a.rows; ++r) {
            double sum = 0;
            for (int64_t k = 0; k < x.cols; ++k) sum += load(x, t, k) * load(a, r, k);
            write(h, t, r, scale * sum, accumulate);
        }
    }
}

// Forward: h = x a^T.   da (r,K) (+)= scale * dh (T,r)^T x (T,K)
void lora_gradient(View dh, View x, float scale, View da, bool accumulate) {
    for (int64_t r = 0; r < dh.cols; ++r) {
        for (int64_t k = 0; k < x.cols; ++k) {
            double sum = 0;
            for (int64_t t = 0; t < x.rows; ++t) sum += load(dh, t, r) * load(x, t, k);
            write(da, r, k, scale * sum, accumulate);
        }
    }
}

}  // namespace fb::reference
