// Text to tokens and back: the parts that both kinds of byte-pair encoding share.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "text/merging.h"
#include "text/pieces.h"
#include "text/vocabulary.h"

namespace fb::text {

struct Span {
    uint32_t begin, end;  // in characters
};

// A part of a text: a token that the caller found there, or plain text to encode (kNone).
struct Part {
    uint32_t token;
    uint32_t begin, end;  // in characters
    bool spaced;          // plain text as if preceded by a space, which is not a character of the text
};

// Memory that encoding needs and keeps for the next text.
struct Scratch {
    Merger merger;
    WordCache cache;
    Pieces pieces, stretch;
    std::string spaced, held, letters;
    std::vector<uint32_t> origin;
};

// Any number of threads may encode at the same time.
class Encoder {
public:
    explicit Encoder(Tokens tokens) : tokens_(std::move(tokens)) {}
    virtual ~Encoder() = default;

    const Tokens& tokens() const { return tokens_; }
    // Appends the tokens of valid UTF-8, whose `parts` follow one another. With `spans`, also the range of characters
    // that each token stands for: whole characters, even if a token is part of one. Text without a token is omitted.
    void encode(std::string_view text, const std::vector<Part>& parts, std::vector<uint32_t>& ids,
                std::vector<Span>* spans) const;
    // Returns the bytes that the tokens stand for. Numbers beyond the vocabulary are omitted.
    virtual std::string decode(const std::vector<int64_t>& ids) const = 0;
    // Returns the bytes that one token stands for inside a text: a part of a character, for some.
    virtual std::string bytes(uint32_t id) const = 0;

protected:
    // Returns the text to encode instead. `origin` stays empty if its characters correspond one to one to the text's.
    virtual std::string_view normalize(std::string_view text, std::string& held,
                                       std::vector<uint32_t>& origin) const = 0;
    virtual void encode_normal(std::string_view text, Scratch& scratch, Pieces& out) const = 0;

private:
    void encode_plain(std::string_view text, const Part& part, Scratch& scratch, std::vector<uint32_t>& ids,
                      std::vector<Span>* spans) const;

    Tokens tokens_;
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;  // one for each thread that encoded at the same time
};

// Throws std::invalid_argument for an impossible vocabulary or merges, or an unsupported expression.
struct ByteLevelOptions {
    std::vector<std::string> cuts;  // regular expressions, each of which cuts the pieces of the one before it
    bool composes;                  // characters are composed first
    bool whole_words;               // a word that is a token becomes it, regardless of the merges
};
// Encodes bytes as visible characters, which are merged by rank. `merges` holds n_merges strings "left right".
std::unique_ptr<Encoder> make_byte_level(Tokens tokens, StringReader merges, uint32_t n_merges,
                                         const ByteLevelOptions& options);
struct SentencePieceOptions {
    std::vector<float> scores;  // neighbours are merged if their union is the piece with the highest score
    bool by_merges;             // instead, neighbours are merged by rank in the list of merges
    bool strips_space;          // decoded text loses the leading space that encoding added
};
// A character without a token becomes the tokens of its bytes, or, as a run of such characters, the unknown token.
std::unique_ptr<Encoder> make_sentencepiece(Tokens tokens, StringReader merges, uint32_t n_merges,
                                            SentencePieceOptions options);

}  // namespace fb::text
