#include "program/peft_file.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "core/checks.h"

namespace fb {
namespace {

constexpr uint64_t kMostHeader = 64 << 20;
const std::string kPrefix = "base_model.model.";

// Calls `visit(element of the file, place in a layer)` for each element of a tensor, in the file's order.
template <class Visit>
void each_element(const Recording& recording, const Recording::Value& value, const Visit& visit) {
    const auto ordered = [&](int64_t order, int64_t i) {
        return order < 0 ? i : int64_t(recording.numbers<int32_t>(order)[i]);
    };
    for (int64_t i = 0; i < value.rows; i++) {
        const int64_t row = value.start + ordered(value.row_order, i) * value.row_step;
        for (int64_t j = 0; j < value.cols; j++)
            visit(i * value.cols + j, row + ordered(value.col_order, j) * value.col_step);
    }
}

// The numbers of a list in JSON, such as "[8, 576]", that follows a key behind `from`.
std::pair<uint64_t, uint64_t> two_numbers(const std::string& header, size_t from, const std::string& key,
                                          const std::string& name) {
    const size_t end = header.find('}', from), at = header.find("\"" + key + "\"", from);
    const size_t open = at == std::string::npos ? at : header.find('[', at);
    unsigned long long first = 0, second = 0;
    if (open == std::string::npos || open > end ||
        std::sscanf(header.c_str() + open, "[%llu ,%llu]", &first, &second) != 2)
        throw std::runtime_error("the adapter's tensor " + excerpt(name) + " has no two numbers in " + key);
    return {first, second};
}

}  // namespace

void read_peft(const std::string& path, const Recording& recording, Rows& values) {
    const File file = File::open(path);
    const int64_t bytes = file.size();
    uint64_t length = 0;
    if (bytes < 8) throw std::runtime_error(path + " is not a safetensors file");
    file.read(0, &length, 8);
    if (length > kMostHeader || int64_t(length) > bytes - 8)
        throw std::runtime_error(path + " is not a safetensors file");
    std::string header(size_t(length), ' ');
    file.read(8, header.data(), header.size());
    const uint64_t room = uint64_t(bytes) - 8 - length;
    std::vector<float> stored;
    std::vector<float> layer;
    int64_t current = -1;
    const auto put_back = [&] {
        if (current >= 0) values.write(current, 0, recording.size, layer.data());
    };
    for (const Recording::Value& value : recording.values) {
        const std::string key = "\"" + kPrefix + value.name + "\"";
        const size_t at = header.find(key);
        if (at == std::string::npos) throw std::runtime_error(path + " has no tensor " + excerpt(value.name));
        const auto [rows, cols] = two_numbers(header, at + key.size(), "shape", value.name);
        const auto [begin, end] = two_numbers(header, at + key.size(), "data_offsets", value.name);
        const size_t type = header.find("\"F32\"", at);
        if (type == std::string::npos || type > header.find('}', at))
            throw std::runtime_error("the adapter's tensor " + excerpt(value.name) + " is not F32");
        if (rows != uint64_t(value.rows) || cols != uint64_t(value.cols) || begin > end || end > room ||
            end - begin != rows * cols * 4)
            throw std::runtime_error("the adapter's tensor " + excerpt(value.name) +
                                     " has a different shape from the recording's");
        stored.resize(size_t(rows * cols));
        file.read(int64_t(8 + length + begin), stored.data(), stored.size() * 4);
        for (const float each : stored)
            if (!std::isfinite(each))
                throw std::runtime_error("the adapter's tensor " + excerpt(value.name) + " is not finite");
        if (value.layer != current) {
            put_back();
            current = value.layer;
            layer.assign(size_t(recording.size), 0.0f);
        }
        each_element(recording, value, [&](int64_t from, int64_t to) { layer[size_t(to)] = stored[size_t(from)]; });
    }
    put_back();
}

void write_peft(const std::string& path, const Recording& recording, const Rows& values) {
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
    uint64_t end = 0;
    for (const Recording::Value& value : recording.values) {
        const uint64_t begin = end;
        end += uint64_t(value.rows * value.cols) * 4;
        header += ",\"" + kPrefix + value.name + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(value.rows) +
                  "," + std::to_string(value.cols) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
                  std::to_string(end) + "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    const std::string beside = path + ".part";
    try {
        const File file = File::create(beside);
        file.write(0, &length, 8);
        file.write(8, header.data(), header.size());
        std::vector<float> layer(size_t(recording.size)), stored;
        int64_t current = -1, place = 8 + int64_t(length);
        for (const Recording::Value& value : recording.values) {
            if (value.layer != current) values.read(current = value.layer, 0, recording.size, layer.data());
            stored.resize(size_t(value.rows * value.cols));
            each_element(recording, value, [&](int64_t to, int64_t from) { stored[size_t(to)] = layer[size_t(from)]; });
            file.write(place, stored.data(), stored.size() * 4);
            place += int64_t(stored.size()) * 4;
        }
        file.sync();
    } catch (...) {
        remove_file(beside);
        throw;
    }
    replace(path, beside);
}

}  // namespace fb
