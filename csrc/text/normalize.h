// Unicode's composed form (NFC), with the place in the original that each character stands for.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fb::text {

// Whether `to_composed` would change the text.
bool needs_composing(std::string_view text);

// Composes valid UTF-8. `origin` gets, for each character written, the number of the original's character it stands
// for: a composed one stands for the first of those it is composed of, as in the `tokenizers` library.
void to_composed(std::string_view text, std::string& composed, std::vector<uint32_t>& origin);

}  // namespace fb::text
