#pragma once

#include <functional>
#include <string>

namespace carope::test {

/// What `body` returns in a process of its own, which may limit or remount what it likes. A signal
/// ends it after a minute.
std::string in_a_child(const std::function<std::string()>& body);

/// Puts a file system of so many bytes, in memory, on a folder; false where that is not allowed.
/// Only this process and its children see it: for use in a child.
bool mount_small(const std::string& folder, std::size_t bytes);
/// Changes the size of one.
bool resize_mounted(const std::string& folder, std::size_t bytes);

}  // namespace carope::test
