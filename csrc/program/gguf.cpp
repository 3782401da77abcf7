#include "program/gguf.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/checks.h"
#include "host/pager.h"

namespace fb {
namespace {

// The largest piece of the page cache that Linux maps on one access.
constexpr int64_t kFolio = 2 << 20;
constexpr uint64_t kMostCount = 1 << 24;
enum Kind : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

// Reads numbers and texts in order. GGUF is little-endian, as all systems are that this is built for.
class Reader {
public:
    Reader(const uint8_t* at, const uint8_t* end) : at_(at), begin_(at), end_(end) {}

    const uint8_t* take(uint64_t bytes) {
        if (bytes > uint64_t(end_ - at_)) throw std::runtime_error("the model file ends in its header");
        const uint8_t* found = at_;
        at_ += bytes;
        return found;
    }
    template <class T>
    T number() {
        T value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    std::string string() {
        const uint64_t size = number<uint64_t>();
        return {reinterpret_cast<const char*>(take(size)), size_t(size)};
    }
    void skip(uint32_t kind, int depth = 0) {
        if (kind == text) {
            take(number<uint64_t>());
        } else if (kind == array && depth < 4) {
            const uint32_t each = number<uint32_t>();
            const uint64_t count = number<uint64_t>();
            if (const int size = size_of(each)) {
                if (count > uint64_t(end_ - at_)) throw std::runtime_error("the model file ends in its header");
                take(count * uint64_t(size));
            } else {
                for (uint64_t i = 0; i < count; i++) skip(each, depth + 1);
            }
        } else if (const int size = size_of(kind)) {
            take(uint64_t(size));
        } else {
            throw std::runtime_error("the model file's header has a value of an unknown kind");
        }
    }
    int64_t offset() const { return at_ - begin_; }

private:
    static int size_of(uint32_t kind) {
        switch (kind) {
            case u8:
            case i8:
            case boolean: return 1;
            case u16:
            case i16: return 2;
            case u32:
            case i32:
            case f32: return 4;
            case u64:
            case i64:
            case f64: return 8;
            default: return 0;
        }
    }

    const uint8_t *at_, *begin_, *end_;
};

}  // namespace

// FNV-1a, in 64 bits.
struct Gguf::Hash {
    uint64_t value = 0xcbf29ce484222325;

    void add(const void* bytes, size_t count) {
        for (size_t i = 0; i < count; i++) value = (value ^ static_cast<const uint8_t*>(bytes)[i]) * 0x100000001b3;
    }
    void add(const std::string& text) { add(text.data(), text.size()); }
};

Gguf::Gguf(const std::string& path)
    : file_(File::open(path)), begin_(file_.map()), end_(begin_ + file_.size()), guard_(begin_, size_t(end_ - begin_)) {
    Reader reader(begin_, end_);
    if (end_ - begin_ < 24 || std::memcmp(reader.take(4), "GGUF", 4)) throw std::runtime_error(path + " is not GGUF");
    const uint32_t version = reader.number<uint32_t>();
    if (version < 2 || version > 3) throw std::runtime_error(path + " is GGUF of an unknown version");
    const uint64_t tensors = reader.number<uint64_t>(), values = reader.number<uint64_t>();
    if (tensors > kMostCount || values > kMostCount) throw std::runtime_error(path + " has too many tensors or values");
    uint64_t alignment = 32;
    std::vector<std::pair<std::string, std::string>> settings;  // those of the architecture: key, type and value
    std::string architecture;
    for (uint64_t i = 0; i < values; i++) {
        const std::string name = reader.string();
        const int64_t begin = reader.offset();
        const uint32_t kind = reader.number<uint32_t>();
        reader.skip(kind);
        const auto value = [&](int64_t skipped) {
            const int64_t from = begin + skipped;
            return std::string(reinterpret_cast<const char*>(begin_ + from), size_t(reader.offset() - from));
        };
        if (name == "general.alignment" && kind == u32) std::memcpy(&alignment, value(4).data(), 4);
        if (name == "general.architecture" && kind == text) architecture = value(12);
        if (name.compare(0, 10, "tokenizer.") && name.compare(0, 8, "general.")) settings.emplace_back(name, value(0));
    }
    for (uint64_t i = 0; i < tensors; i++) {
        const std::string name = reader.string();
        const uint32_t dimensions = reader.number<uint32_t>();
        if (dimensions < 1 || dimensions > 8)
            throw std::runtime_error("tensor " + excerpt(name) + " has too many dimensions");
        Tensor tensor{TensorType::F32, 1, 1, 0};
        for (uint32_t d = 0; d < dimensions; d++) {
            const uint64_t extent = reader.number<uint64_t>();
            if (extent > uint64_t(kMost)) throw std::runtime_error("tensor " + excerpt(name) + " is too large");
            if (d == 0) tensor.cols = int64_t(extent);
            else tensor.rows = product({tensor.rows, int64_t(extent)}, "a tensor");
        }
        tensor.type = TensorType(reader.number<uint32_t>());
        const uint64_t offset = reader.number<uint64_t>();
        if (offset > uint64_t(end_ - begin_))
            throw std::runtime_error("tensor " + excerpt(name) + " lies outside the file");
        tensor.offset = int64_t(offset);
        tensors_.emplace(name, tensor);
    }
    if (!alignment || alignment % 4 || alignment > (1u << 20))
        throw std::runtime_error(path + " has an impossible alignment");
    const int64_t data = int64_t((uint64_t(reader.offset()) + alignment - 1) / alignment * alignment);
    for (auto& entry : tensors_) {
        if (entry.second.offset % 4) throw std::runtime_error("tensor " + excerpt(entry.first) + " is not aligned");
        entry.second.offset += data;
    }
    Hash hash;
    hash.add(std::to_string(tensors) + " " + architecture);
    for (const auto& [key, value] : settings)
        if (key.compare(0, architecture.size() + 1, architecture + ".") == 0) hash.add(key), hash.add(value);
    std::map<std::string, uint64_t> factors;  // by name
    for (const auto& entry : tensors_)
        if (entry.first.compare(0, 5, "rope_") == 0) factors[entry.first] = checksum(entry.first);
    for (const auto& [name, of_tensor] : factors) hash.add(name), hash.add(&of_tensor, 8);
    checksum_ = hash.value;
    stamp_ = file_.stamp();
    drop_pages(begin_, size_t(std::min<int64_t>(data, end_ - begin_)));
}

const Gguf::Tensor& Gguf::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error("the model has no tensor " + excerpt(name));
    return found->second;
}

uint64_t Gguf::checksum(const std::string& name) const {
    const Tensor& tensor = find(name);
    const Matrix m = matrix(name, tensor.type, tensor.rows, tensor.cols);
    std::vector<uint8_t> bytes(size_t(m.rows * m.row_bytes));
    read(m.data, bytes.data(), bytes.size());
    Hash hash;
    hash.add(bytes.data(), bytes.size());
    return hash.value;
}

void Gguf::check_unchanged() const {
    if (guard_.lost() || file_.stamp() != stamp_)
        throw std::runtime_error("another program has changed the model file");
}

Matrix Gguf::matrix(const std::string& name, TensorType type, int64_t rows, int64_t cols) const {
    const Tensor& tensor = find(name);
    const BlockShape block = block_shape(tensor.type);
    if (tensor.type != type || tensor.rows != rows || tensor.cols != cols || !block.weights || cols % block.weights)
        throw std::runtime_error("the model's tensor " + excerpt(name) +
                                 " has a different type or shape from the recording's");
    Matrix m;
    m.data = begin_ + tensor.offset;
    m.type = type;
    m.row_bytes = product({cols / block.weights, block.bytes}, "a row");
    m.rows = rows;
    m.cols = cols;
    if (tensor.offset > end_ - begin_ || product({rows, m.row_bytes}, "a tensor") > end_ - m.data)
        throw std::runtime_error("the model's tensor " + excerpt(name) + " lies outside the file");
    return m;
}

const float* Gguf::vector(const std::string& name, int64_t size) const {
    const Tensor& tensor = find(name);
    const Matrix m = matrix(name, TensorType::F32, tensor.rows, tensor.cols);
    if (product({m.rows, m.cols}, "a vector") != size)
        throw std::runtime_error("the model's tensor " + excerpt(name) + " has another size");
    if (reinterpret_cast<uintptr_t>(m.data) % alignof(float))
        throw std::runtime_error("the model's tensor " + excerpt(name) + " is not aligned");
    return reinterpret_cast<const float*>(m.data);
}

void Gguf::release(const Matrix& matrix) const {
    const uint8_t* first = matrix.data + matrix.row0 * matrix.row_bytes;
    const uint8_t* last = first + matrix.rows * matrix.row_bytes;
    first -= std::min<int64_t>(kFolio, first - begin_);
    last += std::min<int64_t>(kFolio, end_ - last);
    drop_pages(first, size_t(last - first));
}

}  // namespace fb
