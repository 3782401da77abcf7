#include "text/expression.h"

#include <algorithm>
#include <stdexcept>

#include "text/utf8.h"

namespace fb::text {
namespace {

constexpr size_t kMostSteps = 1 << 12;    // of a compiled expression
constexpr uint64_t kMostTries = 1 << 27;  // steps and characters in one search
constexpr size_t kMostWaiting = 1 << 20;  // places to return to
constexpr size_t kKeptWaiting = 1 << 10;  // the memory for more is not kept

// A place to return to if the way that was taken fails. A run may also end at any character from `least` on.
struct Waiting {
    uint32_t step;
    const char *least, *at;
};

// Returns whether a match of the node has at least one character.
bool has_length(const Node& node) {
    const auto part_has = [](const Node& part) { return has_length(part); };
    switch (node.kind) {
        case Node::kOne: return true;
        case Node::kSequence: return std::any_of(node.parts.begin(), node.parts.end(), part_has);
        case Node::kChoice: return std::all_of(node.parts.begin(), node.parts.end(), part_has);
        case Node::kRepeat: return node.least > 0 && has_length(node.parts[0]);
        default: return false;
    }
}

}  // namespace

struct Expression::Search {
    const char* end;
    std::vector<Waiting>& waiting;
    uint64_t tries = 0;
    void count(uint64_t more) {
        if ((tries += more) > kMostTries)
            throw std::invalid_argument("a text that takes a regular expression of the file too many steps");
    }
    void wait(const Waiting& place) {
        if (waiting.size() == kMostWaiting)
            throw std::invalid_argument("a text that takes a regular expression of the file too much memory");
        waiting.push_back(place);
    }
};

Expression::Expression(std::string_view pattern) {
    compile(parse_expression(pattern));
    add({kMatch});
}

uint32_t Expression::add(Step step) {
    if (steps_.size() == kMostSteps) throw std::invalid_argument("a regular expression with too many repetitions");
    steps_.push_back(step);
    return uint32_t(steps_.size() - 1);
}

void Expression::compile(const Node& node) {
    switch (node.kind) {
        case Node::kOne: return compile_run(node, 1, 1, false);
        case Node::kSequence:
            for (const Node& part : node.parts) compile(part);
            return;
        case Node::kChoice: {
            std::vector<uint32_t> jumps;
            for (const Node& part : node.parts) {
                if (&part == &node.parts.back()) {
                    compile(part);
                    break;
                }
                const uint32_t fork = add({kFork});
                compile(part);
                jumps.push_back(add({kJump}));
                steps_[fork].next = uint32_t(steps_.size());
            }
            for (const uint32_t jump : jumps) steps_[jump].next = uint32_t(steps_.size());
            return;
        }
        case Node::kRepeat: return compile_repeat(node);
        case Node::kLineEnd: add({kLineEnd}); return;
        default: {
            const uint32_t look = add({node.kind == Node::kAhead ? kAhead : kNotAhead});
            compile(node.parts[0]);
            add({kMatch});
            steps_[look].next = uint32_t(steps_.size());
        }
    }
}

void Expression::compile_repeat(const Node& node) {
    const Node& part = node.parts[0];
    if (part.kind == Node::kOne) return compile_run(part, node.least, node.most, node.possessive);
    if (node.possessive || !has_length(part))
        throw std::invalid_argument("a regular expression with this repetition of a group");
    for (uint32_t i = 0; i < node.least; i++) compile(part);
    if (node.most == kNoLimit) {
        const uint32_t fork = add({kFork});
        compile(part);
        steps_[add({kJump})].next = fork;
        steps_[fork].next = uint32_t(steps_.size());
        return;
    }
    std::vector<uint32_t> forks;
    for (uint32_t i = node.least; i < node.most; i++) {
        forks.push_back(add({kFork}));
        compile(part);
    }
    for (const uint32_t fork : forks) steps_[fork].next = uint32_t(steps_.size());
}

void Expression::compile_run(const Node& one, uint32_t least, uint32_t most, bool possessive) {
    Step step{possessive ? kPossessive : kRun};
    step.set = uint32_t(sets_.size());
    step.least = least;
    step.most = most;
    add(step);
    Set set{one.members, {}};
    for (uint32_t code = 0; code < set.ascii.size(); code++) set.ascii[code] = set.members.has(code);
    sets_.push_back(std::move(set));
}

// Returns the end of the match of the steps from `first` on, or null.
const char* Expression::match(uint32_t first, const char* at, Search& search) const {
    const size_t base = search.waiting.size();
    uint32_t number = first;
    for (;;) {
        const Step& step = steps_[number];
        search.count(1);
        bool fits = true;
        switch (step.kind) {
            case kMatch: search.waiting.resize(base); return at;
            case kRun:
            case kPossessive: {
                const Set& set = sets_[step.set];
                const char* least = step.least ? nullptr : at;
                uint32_t count = 0;
                while (count < step.most && at < search.end) {
                    uint32_t bytes = 1;
                    if (uint8_t(*at) < 0x80) {
                        if (!set.ascii[uint8_t(*at)]) break;
                    } else {
                        const Char c = read_char(at, search.end);
                        if (!set.members.has(c.code)) break;
                        bytes = c.bytes;
                    }
                    at += bytes;
                    if (++count == step.least) least = at;
                }
                search.count(count);
                fits = least;
                number++;
                if (fits && at > least && step.kind == kRun) search.wait({number, least, at});
                break;
            }
            case kFork:
                search.wait({step.next, at, at});
                number++;
                break;
            case kJump: number = step.next; break;
            case kAhead:
            case kNotAhead:
                fits = (match(number + 1, at, search) != nullptr) == (step.kind == kAhead);
                number = step.next;
                break;
            case kLineEnd:
                fits = at == search.end || *at == '\n';
                number++;
                break;
        }
        if (fits) continue;
        if (search.waiting.size() == base) return nullptr;
        Waiting& place = search.waiting.back();
        number = place.step;
        if (place.at > place.least) do
                place.at--;
            while (is_continuation(*place.at));
        at = place.at;
        if (place.at == place.least) search.waiting.pop_back();
    }
}

const char* Expression::operator()(const char* begin, const char* end) const {
    thread_local std::vector<Waiting> waiting;
    waiting.clear();
    if (waiting.capacity() > kKeptWaiting) std::vector<Waiting>().swap(waiting);
    Search search{end, waiting};
    const char* found = match(0, begin, search);
    if (found && found > begin) return found;
    for (const char* at = begin; at < end;) {
        at += read_char(at, end).bytes;
        if (match(0, at, search)) return at;
    }
    return end;
}

}  // namespace fb::text
