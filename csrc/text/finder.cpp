#include "text/finder.h"

#include <algorithm>
#include <stdexcept>

#include "text/pieces.h"
#include "text/utf8.h"

namespace fb::text {

NameFinder::NameFinder(const std::vector<std::string>& names) {
    for (uint32_t i = 0; i < names.size(); i++) {
        const std::string& name = names[i];
        if (name.empty()) throw std::invalid_argument("a name must not be empty");
        uint32_t node = 0;
        for (size_t at = name.size(); at-- > 0;) {
            uint32_t next = child(node, name[at]);
            if (!next) {
                next = uint32_t(nodes_.size());
                nodes_.push_back({0, nodes_[node].child, 0, kNone, name[at]});
                nodes_[node].child = next;
                if (!node) roots_[uint8_t(name[at])] = next;
            }
            node = next;
        }
        nodes_[node].name = i;
        lengths_.push_back(
            uint32_t(std::count_if(name.begin(), name.end(), [](char c) { return !is_continuation(c); })));
    }
    std::vector<uint32_t> queue{0};  // by length, so that shorter suffixes are ready
    for (size_t done = 0; done < queue.size(); done++) {
        for (uint32_t node = nodes_[queue[done]].child; node; node = nodes_[node].sibling) {
            queue.push_back(node);
            if (queue[done]) nodes_[node].shorter = step(nodes_[queue[done]].shorter, nodes_[node].byte);
            if (nodes_[node].name == kNone) nodes_[node].name = nodes_[nodes_[node].shorter].name;
        }
    }
}

uint32_t NameFinder::child(uint32_t node, char byte) const {
    if (!node) return roots_[uint8_t(byte)];
    uint32_t found = nodes_[node].child;
    while (found && nodes_[found].byte != byte) found = nodes_[found].sibling;
    return found;
}

uint32_t NameFinder::step(uint32_t node, char byte) const {
    for (;; node = nodes_[node].shorter) {
        const uint32_t next = child(node, byte);
        if (next || !node) return next;
    }
}

std::vector<NameFinder::Hit> NameFinder::find(std::string_view text) const {
    std::vector<Hit> hits;
    uint32_t node = 0, chars = 0;  // chars: number of characters after the current place
    for (size_t at = text.size(); at-- > 0;) {
        node = step(node, text[at]);
        chars += !is_continuation(text[at]);
        if (nodes_[node].name != kNone) hits.push_back({nodes_[node].name, chars, 0});
    }
    std::reverse(hits.begin(), hits.end());
    for (Hit& hit : hits) {  // they were counted from the end so far
        hit.begin = chars - hit.begin;
        hit.end = hit.begin + lengths_[hit.name];
    }
    return hits;
}

}  // namespace fb::text
