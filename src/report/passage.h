#pragma once

#include <string>
#include <vector>

#include "report/run_record.h"
#include "report/svg.h"

// A text whose tokens have the colours of their frequencies: orange ones turn a head's clock
// further than its median, blue ones hold it back.
namespace carope {

/// As an element of a page, in which a reader chooses layer and head; `number` is that of the gate
/// in the page, `start` the f of the RoPE that the gate starts from. Empty where there is no text.
std::string passage_html(const GateRecord& gate, double start, int number);

/// Its beginning, as a picture of each head that tells tokens apart most.
std::vector<Drawing> passage_drawings(const GateRecord& gate);

}  // namespace carope
