// An adapter's values as PEFT stores them: adapter_model.safetensors.
#pragma once
#include <string>

#include "program/recording.h"
#include "program/rows.h"

namespace fb {

// Throws std::runtime_error if a tensor of the recording is missing or has another shape.
void read_peft(const std::string& path, const Recording& recording, Rows& values);
// Writes a file beside `path`, and then renames it.
void write_peft(const std::string& path, const Recording& recording, const Rows& values);

}  // namespace fb
