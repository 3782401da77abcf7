#include "reference/reference.h"

namespace fb::reference {

void cast(View x, View out) {
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) store(out, r, c, load(x, r, c));
    }
}

double sum_squares(View x) {
    double sum = 0;
    for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) sum += load(x, r, c) * load(x, r, c);
    }
    return sum;
}

}  // namespace fb::reference
