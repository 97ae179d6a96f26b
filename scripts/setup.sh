# Sourced by ./run and ./test: installs what the build needs and builds a preset. Debian 12 and relatives.

# ocl-icd-opencl-dev: oneDNN's CMake package asks for OpenCL's headers.
packages=(g++ cmake ninja-build libdnnl-dev ocl-icd-opencl-dev libfmt-dev libcli11-dev
          libtomlplusplus-dev nlohmann-json3-dev libsimdjson-dev libcurl4-openssl-dev libssl-dev
          zlib1g-dev libzstd-dev libgtest-dev libgmock-dev libbenchmark-dev)
# The preset fuzz is built with clang: g++ has no libFuzzer.
fuzz_packages=(clang libclang-rt-dev libomp-dev)
# Processes that train together on CPUs; tests also cut a network between them.
ranks_packages=(libopenmpi-dev openmpi-bin iproute2)
# Tests look at the report in a browser.
browser_packages=(chromium fonts-dejavu-core)

say() { printf '\n== %s\n' "$*"; }

# Installs those of the named packages that are missing, as root or through sudo.
install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "Not a Debian system: make sure that the equivalents of these are installed: $*"
    return
  fi
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  local as_root=(env DEBIAN_FRONTEND=noninteractive)
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Missing packages and no sudo: run 'apt-get install ${missing[*]}' as root, then try again." >&2
      return 1
    fi
    as_root=(sudo "${as_root[@]}")
  fi
  say "Installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Installs Python packages into build/python, a virtual environment that the build looks into.
install_wheel() {
  { [ -x build/python/bin/pip ] || python3 -m venv build/python; } &&
    build/python/bin/pip install --quiet --retries 1 "$@"
}

# Makes sure that the build finds Arrow's library, which reads Parquet: where neither it nor pyarrow is there, gets
# pyarrow into build/python. Not having it is no failure, since reading Parquet is optional.
install_parquet() {
  local python
  if dpkg-query -W -f='${db:Status-Status}\n' libparquet-dev 2>/dev/null | grep -qx installed; then
    return
  fi
  for python in build/python/bin/python python3; do
    if "$python" -c 'import pyarrow' 2>/dev/null; then
      return
    fi
  done
  say "Installing pyarrow into build/python, for Arrow's library, which reads Parquet"
  if ! install_wheel pyarrow; then
    say "No pyarrow could be had: the build will read no Parquet"
  fi
}

# Whether a header lies in one of the folders.
has_header() {
  local header=$1 folder
  shift
  for folder in "$@"; do
    if [ -e "$folder/$header" ]; then
      return 0
    fi
  done
  return 1
}

# Where nvcc and cuDNN are there, makes sure that the build finds the headers of cudnn-frontend, by which it uses cuDNN.
# Not having them is no failure: the program has kernels of its own.
install_cudnn_frontend() {
  local nvcc toolkit
  nvcc=$(command -v nvcc) || return 0
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include
  if ! has_header cudnn.h "$toolkit" /usr/include /usr/include/*-linux-gnu ||
     has_header cudnn_frontend.h "$toolkit" /usr/include /usr/local/include build/python/lib/python3*/site-packages/include
  then
    return 0
  fi
  say "Installing nvidia-cudnn-frontend into build/python, for its headers, by which the build uses cuDNN"
  if ! install_wheel --no-deps nvidia-cudnn-frontend; then
    say "No nvidia-cudnn-frontend could be had: attention will use this program's own kernels"
  fi
}

# Configures and builds a preset of CMakePresets.json, and further targets if named.
build_preset() {
  local preset=$1
  shift
  say "Building: $preset"
  cmake --preset "$preset"
  cmake --build --preset "$preset" "$@"
}
