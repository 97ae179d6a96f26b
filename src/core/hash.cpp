#include "core/hash.h"

#include <openssl/evp.h>

#include <array>

#include "core/error.h"
#include "core/file.h"

namespace carope {

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(),
                                                                  EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check<Error>(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1,
               "OpenSSL offers no SHA-256; check its installation");
}

Sha256::~Sha256() = default;

void Sha256::add(std::string_view bytes) {
  EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size());
}

std::string Sha256::digest() {
  std::array<unsigned char, 32> digest{};
  EVP_DigestFinal_ex(state_->context.get(), digest.data(), nullptr);
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.digest();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return sha256({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

}  // namespace carope
