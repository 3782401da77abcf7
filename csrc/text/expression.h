// Cuts text by any regular expression, with backtracking.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/expression_tree.h"

namespace fb::text {

class Expression {
public:
    // Throws std::invalid_argument if the expression is not supported.
    explicit Expression(std::string_view pattern);
    // The end of the first piece of a non-empty text, as cuts.h says. Throws std::invalid_argument if a search takes
    // too many steps. Any number of threads may call it.
    const char* operator()(const char* begin, const char* end) const;

private:
    enum Kind : uint8_t { kRun, kPossessive, kFork, kJump, kAhead, kNotAhead, kLineEnd, kMatch };
    struct Step {
        Kind kind;
        uint32_t set = 0, least = 0, most = 0;  // of a run
        uint32_t next = 0;  // of a jump; of a fork, the second way; of a lookahead, the step after it
    };
    struct Set {
        Members members;
        std::array<bool, 128> ascii;
    };
    struct Search;

    uint32_t add(Step step);
    void compile(const Node& node);
    void compile_repeat(const Node& node);
    void compile_run(const Node& one, uint32_t least, uint32_t most, bool possessive);
    const char* match(uint32_t first, const char* at, Search& search) const;

    std::vector<Step> steps_;
    std::vector<Set> sets_;
};

}  // namespace fb::text
