// Regular expressions as trees.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace fb::text {

constexpr uint32_t kNoLimit = 0xFFFFFFFF;

// Characters: those of the categories and ranges, or all others.
struct Members {
    bool has(uint32_t code) const {
        bool found = category(code) & categories;
        for (const auto& [first, last] : ranges) found |= first <= code && code <= last;
        return found != negated;
    }

    CharSet categories = 0;
    std::vector<std::pair<uint32_t, uint32_t>> ranges;  // of code points
    bool negated = false;
};

struct Node {
    enum Kind { kOne, kSequence, kChoice, kRepeat, kAhead, kNotAhead, kLineEnd } kind;
    std::vector<Node> parts;       // a repetition and a lookahead have one
    Members members;               // of kOne
    uint32_t least = 1, most = 1;  // of a repetition
    bool possessive = false;       // of a repetition
};

// Reads an expression in Oniguruma's syntax: alternatives, groups, classes, \s, \d and \p{...} by category, greedy and
// possessive repetition, lookahead, (?i:...) with ASCII letters, and $. Throws std::invalid_argument for other syntax.
Node parse_expression(std::string_view pattern);

}  // namespace fb::text
