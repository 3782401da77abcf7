#include "bindings/arrays.h"
#include "text/cuts.h"
#include "text/encoder.h"
#include "text/finder.h"
#include "text/utf8.h"

namespace fb {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using StringArray = std::pair<int64_t, int64_t>;  // where in the file the first one is, and how many there are

// A string's UTF-8, without leaving a copy in the string. Raises UnicodeEncodeError for half a surrogate pair.
class Utf8 {
public:
    explicit Utf8(nb::str text) : bytes_(nb::steal(PyUnicode_AsUTF8String(text.ptr()))) {
        if (!bytes_) throw nb::python_error();
    }
    std::string_view view() const { return {PyBytes_AS_STRING(bytes_.ptr()), size_t(PyBytes_GET_SIZE(bytes_.ptr()))}; }

private:
    nb::object bytes_;
};

nb::str as_text(std::string_view bytes) {
    PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), Py_ssize_t(bytes.size()), "replace");
    if (!text) throw nb::python_error();
    return nb::steal<nb::str>(text);
}

// A list, filled item by item.
template <class Item>
nb::list make_list(size_t count, const Item& item) {
    nb::list list = nb::steal<nb::list>(PyList_New(Py_ssize_t(count)));
    if (!list.ptr()) throw nb::python_error();
    for (size_t i = 0; i < count; i++) PyList_SET_ITEM(list.ptr(), Py_ssize_t(i), item(i).release().ptr());
    return list;
}

nb::list ids_of(const std::vector<uint32_t>& ids) {
    return make_list(ids.size(), [&](size_t i) { return nb::int_(ids[i]); });
}

// An encoder and the map that it reads.
struct PyEncoder {
    nb::object file;
    std::unique_ptr<text::Encoder> encoder;
};

// Of tokens or of merges: more than any model has, and what a damaged file may make us hold.
void check_count(int64_t count, int64_t least, const char* what) {
    constexpr int64_t kMost = 1 << 22;
    if (count < least || count > kMost) refuse(std::to_string(count) + " " + what);
}

struct File {
    explicit File(const Bytes& bytes)
        : begin(reinterpret_cast<const char*>(bytes.data())), end(begin + bytes.shape(0)) {}
    const char* at(int64_t offset) const {
        if (offset < 0 || offset > end - begin) refuse("the strings begin outside the file");
        return begin + offset;
    }
    const char *begin, *end;
};

text::Tokens read_tokens(const File& file, StringArray tokens, const Ints& types) {
    const int64_t count = tokens.second;
    check_count(count, 1, "tokens");
    std::vector<uint8_t> kinds(types.shape(0));
    for (size_t i = 0; i < kinds.size(); i++) {
        const int32_t type = types.data()[i];
        kinds[i] = type >= 0 && type < 256 ? uint8_t(type) : 0;
    }
    return {file.at(tokens.first), file.end, uint32_t(count), std::move(kinds)};
}

PyEncoder byte_level(nb::object data, StringArray tokens, Ints types, StringArray merges, std::vector<std::string> cuts,
                     bool composes, bool whole_words) {
    const File file(nb::cast<Bytes>(data));
    check_count(merges.second, 0, "merges");
    text::Tokens vocabulary = read_tokens(file, tokens, types);
    const text::StringReader reader(file.at(merges.first), file.end);
    return {data, text::make_byte_level(std::move(vocabulary), reader, uint32_t(merges.second),
                                        {std::move(cuts), composes, whole_words})};
}

PyEncoder sentencepiece(nb::object data, StringArray tokens, Ints types, InFloats scores) {
    const File file(nb::cast<Bytes>(data));
    std::vector<float> copy(scores.data(), scores.data() + scores.shape(0));
    return {data, text::make_sentencepiece(read_tokens(file, tokens, types), std::move(copy))};
}

using Offsets = nb::ndarray<nb::numpy, uint32_t, nb::shape<-1, 2>>;

std::pair<nb::list, Offsets> encode_with_offsets(PyEncoder& self, nb::str text) {
    const Utf8 utf8(text);
    auto spans = std::make_unique<std::vector<text::Span>>();
    const std::vector<uint32_t> ids = self.encoder->encode(utf8.view(), spans.get());
    static_assert(sizeof(text::Span) == 2 * sizeof(uint32_t));
    void* data = spans->data();
    const size_t count = spans->size();
    const nb::capsule owner(spans.release(), [](void* p) noexcept { delete static_cast<std::vector<text::Span>*>(p); });
    return {ids_of(ids), Offsets(data, {count, 2}, owner)};
}

nb::list cut_text(nb::str text, const std::vector<std::string>& names) {
    std::vector<text::Cut> cuts;
    for (const std::string& name : names) cuts.push_back(text::find_cut(name));
    std::vector<std::string_view> pieces;
    const Utf8 utf8(text);
    text::cut(utf8.view(), cuts.data(), cuts.size(), [&](std::string_view piece) { pieces.push_back(piece); });
    return make_list(pieces.size(), [&](size_t i) { return as_text(pieces[i]); });
}

nb::list find(const text::NameFinder& self, nb::str text) {
    const Utf8 utf8(text);
    const std::vector<text::NameFinder::Hit> hits = self.find(utf8.view());
    return make_list(hits.size(), [&](size_t i) { return nb::make_tuple(hits[i].name, hits[i].begin, hits[i].end); });
}

}  // namespace

void bind_text(nb::module_& m) {
    nb::class_<PyEncoder>(m, "TextEncoder", "Plain text to tokens and back: no special tokens, no leading space.")
        .def_prop_ro("n_vocab", [](const PyEncoder& self) { return self.encoder->tokens().size(); })
        .def(
            "token",
            [](const PyEncoder& self, int64_t id) {
                if (id < 0 || id >= int64_t(self.encoder->tokens().size())) throw nb::index_error("no such token");
                return as_text(self.encoder->tokens()[uint32_t(id)]);
            },
            nb::arg("id"), "A token as the vocabulary spells it")
        .def(
            "encode", [](PyEncoder& self, nb::str text) { return ids_of(self.encoder->encode(Utf8(text).view())); },
            nb::arg("text"), nb::sig("def encode(self, text: str) -> list[int]"))
        .def("encode_with_offsets", &encode_with_offsets, nb::arg("text"),
             "Tokens, and the half-open range of characters that each stands for, (n, 2)")
        .def(
            "decode",
            [](const PyEncoder& self, const std::vector<int64_t>& ids) { return as_text(self.encoder->decode(ids)); },
            nb::arg("ids"));
    m.def("byte_level_encoder", &byte_level, nb::arg("file"), nb::arg("tokens"), nb::arg("types"), nb::arg("merges"),
          nb::arg("cuts"), nb::arg("composes"), nb::arg("whole_words"),
          "Byte-level BPE over a mapped GGUF file, whose strings are given as (offset, count)");
    m.def("sentencepiece_encoder", &sentencepiece, nb::arg("file"), nb::arg("tokens"), nb::arg("types"),
          nb::arg("scores"), "SentencePiece BPE over a mapped GGUF file, whose strings are given as (offset, count)");
    m.def("cut_text", &cut_text, nb::arg("text"), nb::arg("cuts"),
          nb::sig("def cut_text(text: str, cuts: Sequence[str]) -> list[str]"),
          "The pieces that a pre-tokenizer cuts a text into");
    nb::class_<text::NameFinder>(m, "NameFinder", "Finds names in text, in time that their number does not change.")
        .def(nb::init<const std::vector<std::string>&>(), nb::arg("names"))
        .def("find", &find, nb::arg("text"), nb::sig("def find(self, text: str) -> list[tuple[int, int, int]]"),
             "(name, start, end) of the longest name at each character where one begins; they may overlap");
}

}  // namespace fb
