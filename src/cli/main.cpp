#include <CLI/CLI.hpp>
int main(int, char**) { return 0; }
