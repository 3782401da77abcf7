// Byte-pair merging: neighbours are merged, the best pair first, until no rule applies.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/pieces.h"

namespace fb::text {

// The result of merging two neighbours. The lowest priority is merged first; among equals, the leftmost.
struct Join {
    uint32_t priority, id;
};

// A word of n symbols takes n log n steps and about 40 bytes per symbol.
class Merger {
public:
    // Begins a word. Its symbols are added in order.
    void begin() { symbols_.clear(); }
    void add(uint32_t id, uint32_t bytes) { symbols_.push_back({id, bytes, 0, 0}); }
    // Extends the last symbol by more of the text.
    void extend(uint32_t bytes) { symbols_.back().start += bytes; }

    // Merges the pairs that `rules.join(left, right, union, join)` accepts, and appends the result to `out`. `word`
    // holds the symbols' text.
    template <class Rules>
    void merge(std::string_view word, const Rules& rules, Pieces& out) {
        const uint32_t count = uint32_t(symbols_.size());
        uint32_t start = 0;
        for (uint32_t i = 0; i < count; i++) {
            Symbol& symbol = symbols_[i];
            const uint32_t bytes = symbol.start;
            symbol = {symbol.id, start, i ? i - 1 : kNone, i + 1};
            start += bytes;
        }
        symbols_.push_back({kNone, start, count ? count - 1 : kNone, kNone});  // marks the end of the word
        candidates_.clear();
        candidates_.reserve(count + count / 2 + 8);
        for (uint32_t i = 0; i + 1 < count; i++) consider(word, rules, i);
        std::make_heap(candidates_.begin(), candidates_.end());
        while (!candidates_.empty()) {
            std::pop_heap(candidates_.begin(), candidates_.end());
            const Candidate best = candidates_.back();
            candidates_.pop_back();
            if (is_stale(best)) continue;
            Symbol& left = symbols_[best.left];
            Symbol& right = symbols_[left.next];
            Join join{};
            if (!rules.join(left.id, right.id, text(word, best), join)) continue;
            left.id = join.id;
            left.next = right.next;
            symbols_[left.next].previous = best.left;
            right.next = kNone;
            if (left.previous != kNone) push(word, rules, left.previous);
            if (left.next != count) push(word, rules, best.left);
        }
        for (uint32_t i = 0; i < count; i = symbols_[i].next)
            out.push_back({symbols_[i].id, symbols_[symbols_[i].next].start - symbols_[i].start});
        release();
    }

private:
    struct Symbol {
        uint32_t id;
        uint32_t start;           // in bytes; while symbols are added, their length
        uint32_t previous, next;  // next is kNone for a symbol that was merged into the previous one
    };
    struct Candidate {
        uint32_t priority, left, end;                   // end: the symbol after the pair
        bool operator<(const Candidate& other) const {  // the top of the heap is the greatest
            return priority != other.priority ? priority > other.priority : left > other.left;
        }
    };

    // Symbols only grow, so the pair is unchanged if it still begins and ends at the same places.
    bool is_stale(const Candidate& c) const {
        const uint32_t right = symbols_[c.left].next;
        return right == kNone || symbols_[right].next != c.end;
    }
    std::string_view text(std::string_view word, const Candidate& c) const {
        return word.substr(symbols_[c.left].start, symbols_[c.end].start - symbols_[c.left].start);
    }
    template <class Rules>
    bool consider(std::string_view word, const Rules& rules, uint32_t i) {
        const uint32_t right = symbols_[i].next;
        Candidate c{0, i, symbols_[right].next};
        Join join{};
        if (!rules.join(symbols_[i].id, symbols_[right].id, text(word, c), join)) return false;
        c.priority = join.priority;
        candidates_.push_back(c);
        return true;
    }
    template <class Rules>
    void push(std::string_view word, const Rules& rules, uint32_t i) {
        if (candidates_.size() == candidates_.capacity()) drop_stale();
        if (consider(word, rules, i)) std::push_heap(candidates_.begin(), candidates_.end());
    }
    // Bounds the heap by the number of symbols. When it is full, at least a third of it is stale.
    void drop_stale() {
        candidates_.erase(
            std::remove_if(candidates_.begin(), candidates_.end(), [this](const Candidate& c) { return is_stale(c); }),
            candidates_.end());
        std::make_heap(candidates_.begin(), candidates_.end());
    }
    // Frees the memory of a long word.
    void release() {
        constexpr size_t kKept = 1 << 14;
        if (symbols_.capacity() > kKept) std::vector<Symbol>().swap(symbols_);
        if (candidates_.capacity() > kKept) std::vector<Candidate>().swap(candidates_);
    }

    std::vector<Symbol> symbols_;
    std::vector<Candidate> candidates_;  // a heap
};

}  // namespace fb::text
