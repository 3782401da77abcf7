// The vocabulary of a Hugging Face tokenizer.json, read as a stream. Only the strings stay in memory.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fb::text {

class JsonVocabulary {
public:
    // Fills a buffer and returns the number of bytes read, 0 at the end.
    using Source = std::function<size_t(char*, size_t)>;

    // Throws std::invalid_argument if the input is not JSON or not a vocabulary.
    explicit JsonVocabulary(const Source& source);

    // The file's other facts: its JSON, with null for the tables of tokens and merges.
    const std::string& facts() const { return facts_; }
    // One more than the highest token number; 0 if the model's vocabulary is not a table of text and number.
    uint32_t size() const { return uint32_t(places_.size()); }
    uint32_t n_merges() const { return n_merges_; }

    // Sets the text of a number.
    void add(uint32_t id, std::string_view text);
    // Returns the number of each text, or -1 if there is no such token.
    std::vector<int64_t> find(const std::vector<std::string>& texts) const;
    // Tokens by number, and merges "left right" by rank, as GGUF files store strings. A number without a token is
    // empty.
    std::string tokens() const;
    const std::string& merges() const { return merges_; }

private:
    friend class JsonReader;
    struct Place {
        uint32_t start, size;
    };
    std::string facts_, text_, merges_;
    std::vector<Place> places_;
    uint32_t n_merges_ = 0;
};

}  // namespace fb::text
