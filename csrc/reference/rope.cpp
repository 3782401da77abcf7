#include "reference/reference.h"

namespace fb::reference {

// Each head's pair (u, v) is rotated by the angle of its token and index: (u cos - v sin, v cos + u sin). The inverse
// rotation (sin negated) is also the backward pass, because it is the rotation's transpose.
void rope(View x, const RopeTable& table, bool inverse, View out) {
    const int64_t half = table.cos.cols;
    for (int64_t t = 0; t < x.rows; ++t) {
        for (int64_t head = 0; head < x.cols / table.head_dim; ++head) {
            for (int64_t i = 0; i < half; ++i) {
                const int64_t base = head * table.head_dim;
                const int64_t first = base + (table.interleaved ? 2 * i : i);
                const int64_t second = base + (table.interleaved ? 2 * i + 1 : i + half);
                const double c = load(table.cos, t, i);
                const double s = inverse ? -load(table.sin, t, i) : load(table.sin, t, i);
                // out may be x, so both are read before either is written
                const double u = load(x, t, first), v = load(x, t, second);
                store(out, t, first, u * c - v * s);
                store(out, t, second, v * c + u * s);
            }
            for (int64_t i = 2 * half; i < table.head_dim; ++i)
                store(out, t, head * table.head_dim + i, load(x, t, head * table.head_dim + i));
        }
    }
}

}  // namespace fb::reference
