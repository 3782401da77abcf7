#include "reference/reference.h"

namespace fb::reference {

void scale_columns(View x, const float* factors, const float* bias, View out, bool accumulate) {
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) {
            const double factor = factors ? factors[c] : 1, shift = bias ? bias[c] : 0;
            write(out, r, c, load(x, r, c) * factor + shift, accumulate);
        }
    }
}

void column_dots(View x, View y, const float* less, const float* over, float* out) {
    for (int64_t c = 0; c < x.cols; ++c) {
        double sum = 0;
        for (int64_t r = 0; r < x.rows; ++r) sum += load(x, r, c) * (load(y, r, c) - (less ? less[c] : 0));
        if (!over) out[c] = float(out[c] + sum);
        else if (over[c] != 0) out[c] = float(out[c] + sum / over[c]);
    }
}

}  // namespace fb::reference
