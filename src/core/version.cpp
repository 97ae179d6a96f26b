#include "core/version.h"

namespace carope {

std::string_view version() { return CAROPE_VERSION; }

}  // namespace carope
