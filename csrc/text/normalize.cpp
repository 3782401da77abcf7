#include "text/normalize.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace fb::text {
namespace {

// A character being processed. `taken` counts the original characters that are used up when it is written. If one
// character decomposes into several, the first of these takes it.
struct Part {
    uint32_t code;
    uint32_t taken;
    uint8_t combining;
};

void decompose_into(std::vector<Part>& parts, uint32_t code, uint32_t taken) {
    uint32_t first, second;
    if (!decompose(code, first, second)) {
        parts.push_back({code, taken, combining_classes()[code]});
        return;
    }
    decompose_into(parts, first, taken);
    if (second) decompose_into(parts, second, 0);
}

// Sorts each run of combining characters by class.
void order(std::vector<Part>& parts) {
    for (size_t i = 0; i < parts.size();) {
        if (!parts[i].combining) {
            i++;
            continue;
        }
        size_t end = i;
        while (end < parts.size() && parts[end].combining) end++;
        std::stable_sort(parts.begin() + long(i), parts.begin() + long(end),
                         [](const Part& a, const Part& b) { return a.combining < b.combining; });
        i = end;
    }
}

// Merges characters into the starter before them, unless something between has the same class or a higher one.
void join(std::vector<Part>& parts) {
    size_t kept = 0, starter = 0;
    bool started = false;
    int blocking = -1;  // the class of the last character kept after the starter
    for (const Part part : parts) {
        if (started && blocking < int(part.combining)) {
            if (const uint32_t whole = compose(parts[starter].code, part.code)) {
                parts[starter].code = whole;
                parts[starter].taken += part.taken;
                continue;
            }
        }
        if (!part.combining) {
            started = true;
            starter = kept;
            blocking = -1;
        } else {
            blocking = part.combining;
        }
        parts[kept++] = part;
    }
    parts.resize(kept);
}

}  // namespace

bool needs_composing(std::string_view text) {
    const CharTable& composes = composing();
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
        const Char c = read_char(at, end);
        if (composes[c.code]) return true;
        at += c.bytes;
    }
    return false;
}

void to_composed(std::string_view text, std::string& composed, std::vector<uint32_t>& origin) {
    const CharTable& composes = composing();
    std::vector<Part> parts;
    uint32_t place = 0;
    const auto flush = [&] {
        order(parts);
        join(parts);
        for (const Part& part : parts) {
            append(composed, part.code);
            origin.push_back(part.taken || !place ? place : place - 1);
            place += part.taken;
        }
        parts.clear();
    };
    composed.clear();
    origin.clear();
    composed.reserve(text.size());
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
        const Char c = read_char(at, end);
        at += c.bytes;
        const bool joins = composes[c.code];
        if (!joins) flush();  // nothing that follows can change what is before it
        if (!joins && (at == end || !composes[read_char(at, end).code])) {
            append(composed, c.code);
            origin.push_back(place++);
        } else {
            decompose_into(parts, c.code, 1);
        }
    }
    flush();
}

}  // namespace fb::text
