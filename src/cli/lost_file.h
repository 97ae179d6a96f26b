#pragma once

namespace carope {

/// Makes the program say which file it was if one is cut while the program reads it: the system
/// would end it with "Bus error" alone. To be called once, at the start.
void explain_lost_files();

}  // namespace carope
