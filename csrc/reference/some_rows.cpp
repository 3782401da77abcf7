#include "reference/reference.h"

namespace fb::reference {

void take_rows(View x, const int32_t* rows, View out) {
    for (int64_t r = 0; r < out.rows; ++r)
        for (int64_t c = 0; c < out.cols; ++c) store(out, r, c, load(x, rows[r], c));
}

void add_rows(View values, const int32_t* rows, View out) {
    for (int64_t r = 0; r < values.rows; ++r) {
        if (rows[r] < 0 || rows[r] >= out.rows) continue;
        for (int64_t c = 0; c < out.cols; ++c) write(out, rows[r], c, load(values, r, c), true);
    }
}

void row_dots(View x, View y, float* out, bool accumulate) {
    for (int64_t r = 0; r < x.rows; ++r) {
        double sum = accumulate ? out[r] : 0;
        for (int64_t c = 0; c < x.cols; ++c) sum += load(x, r, c) * load(y, r, c);
        out[r] = float(sum);
    }
}

}  // namespace fb::reference
