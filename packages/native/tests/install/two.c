/* A program that links two libraries written in Rust, each with its own copy of Rust's runtime. */
#include <hoplite/hoplite.h>
#include <string.h>

int other_catches_a_panic(void);

int main(void) {
    if (!other_catches_a_panic() || hoplite_client_close((hoplite_client){1}) != HOPLITE_INVALID_HANDLE) return 1;
    return strcmp(hoplite_version(), HOPLITE_VERSION);
}
