// A recorded step as it stands in its file (docs/recording.md). Its arrays lie in their spaces; operations check kinds,
// types and shapes when they run.
#pragma once
#include <string>
#include <vector>

#include "core/types.h"
#include "quant/formats.h"

namespace fb {

// A number of rows or columns: fixed, or that of a batch's tokens or supervised rows, of which a part counts from
// `first` to at most `last`.
struct Extent {
    enum class Of : uint8_t { number, tokens, rows } of = Of::number;
    int32_t first = 0, last = 0;  // a number is `last`

    int64_t at(int64_t tokens, int64_t rows) const {
        if (of == Of::number) return last;
        const int64_t count = (of == Of::tokens ? tokens : rows) < last ? (of == Of::tokens ? tokens : rows) : last;
        return count > first ? count - first : 0;
    }
};

struct Argument {
    enum class Kind : uint8_t {
        none,
        number,
        scale,
        array,
        weight,
        dense,
        table,
        tokens,
        positions,
        targets,
        rows,
        others,
        boundaries,
        activation
    } kind = Kind::none;
    Dtype dtype = Dtype::f32;  // of an array
    char space = 0;            // of an array: 's', 'k' or 'v'
    int32_t index = 0;         // of a weight, a table, a vector, or an activation
    int64_t offset = 0;        // of an array, in bytes; of a weight, its first row
    int64_t column = 0;        // of a weight, its first
    double number = 0;
    Extent height, width, ld;  // of an array or a weight; `height` also of numbers of a batch
};

struct Recording {
    struct Weight {
        std::string name;
        TensorType type;
        int64_t rows, cols;
    };
    struct Vector {
        std::string name;
        int64_t size, offset;  // offset -1: a tensor of the model; else in the numbers, in bytes
        uint64_t checksum;     // of the tensor from which the numbers were computed
    };
    struct Table {
        int64_t cos, sin, rows, cols;
    };
    // A tensor of the adapter in PEFT's layout: element (i, j) is number start + order(i) * row_step + order(j) *
    // col_step of a layer's values.
    struct Value {
        std::string name;
        int64_t layer, start, rows, cols, row_step, col_step, row_order, col_order;  // orders: offsets; -1: as it is
    };
    struct Call {
        int32_t operation;  // its place in the list of operations
        uint32_t line;      // of the file
        uint32_t first;     // of its arguments, among `words`
        uint32_t count;
    };

    explicit Recording(const std::string& path);

    template <class T>
    const T* numbers(int64_t offset) const {
        return reinterpret_cast<const T*>(constants.data() + offset);
    }

    uint64_t model;  // `Gguf::checksum`
    std::string compute;
    int64_t vocabulary, tokens, rows, scratch, kept, slots, width, layers, size;
    Dtype checkpoint;
    std::vector<Weight> weights;
    std::vector<Vector> vectors;
    std::vector<Table> tables;
    std::vector<Value> values;
    std::vector<Call> calls;
    std::vector<uint32_t> words;      // of all calls: the place of each in `arguments`
    std::vector<Argument> arguments;  // all that differ
    std::vector<uint8_t> constants;
};

// The place of an operation in the program's list; -1 if there is none of this name, -2 if it has another number of
// arguments.
int operation_of(const std::string& name, int arguments);
inline int64_t size_of(Dtype type) { return type == Dtype::bf16 ? 2 : 4; }

}  // namespace fb
