// The list of merges of a byte-pair encoding.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/merging.h"
#include "text/vocabulary.h"

namespace fb::text {

// The result and the rank of merging two tokens; for Merger.
class MergeTable {
public:
    MergeTable(StringReader reader, uint32_t count, const TokenIndex& index) : slots_(table_size(count), kNone) {
        left_.reserve(count);
        right_.reserve(count);
        whole_.reserve(count);
        std::string joined;
        for (uint32_t rank = 0; rank < count; rank++) {
            const std::string_view merge = reader.next();
            const size_t space = merge.find(' ');
            const std::string_view left = merge.substr(0, space);
            const std::string_view right = space == merge.npos ? std::string_view() : merge.substr(space + 1);
            joined.assign(left).append(right);
            left_.push_back(index.find(left));
            right_.push_back(index.find(right));
            whole_.push_back(index.find(joined));
            if (left.empty() || right.empty() || left_[rank] == kNone || right_[rank] == kNone || whole_[rank] == kNone)
                throw std::invalid_argument("merge " + std::to_string(rank) + " joins what is not in the vocabulary");
            slots_[slot(left_[rank], right_[rank])] = rank;  // the last of equal merges counts
        }
    }
    bool join(uint32_t left, uint32_t right, std::string_view, Join& join) const {
        const uint32_t rank = slots_[slot(left, right)];
        if (rank == kNone) return false;
        join = {rank, whole_[rank]};
        return true;
    }

private:
    size_t slot(uint32_t left, uint32_t right) const {
        const size_t mask = slots_.size() - 1;
        const uint64_t mixed = (uint64_t(left) << 32 | right) * 0x9E3779B97F4A7C15;
        size_t at = (mixed >> 32 ^ mixed >> 15) & mask;
        while (slots_[at] != kNone && (left_[slots_[at]] != left || right_[slots_[at]] != right)) at = (at + 1) & mask;
        return at;
    }
    std::vector<uint32_t> slots_;  // ranks
    std::vector<uint32_t> left_, right_, whole_;
};

}  // namespace fb::text
