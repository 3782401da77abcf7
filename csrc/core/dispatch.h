// The operation tables that this build and this CPU offer, and the one in use.
#pragma once
#include <vector>

#include "core/ops.h"

namespace fb {

std::vector<const Ops*> available_ops();  // slowest first: reference, portable, ...
const Ops& ops();                         // the one in use: by default the fastest available
void use_ops(const Ops* table);

}  // namespace fb
