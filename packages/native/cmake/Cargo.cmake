# Compiles the crate hoplite-c to one relocatable object, whose path is HOPLITE_OBJECT.
#
# Other symbols than hoplite_* become local, so a program can link libhoplite.a and other Rust libraries, each with its
# own copy of Rust's runtime. A shared library that cargo links cannot have versioned symbols.
find_program(CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
if(NOT CARGO)
    message(FATAL_ERROR "cargo is missing, which compiles libhoplite: install Rust 1.88 or later, see https://rustup.rs")
endif()

if(DEFINED ENV{CARGO_TARGET_DIR})
    set(CARGO_TARGET_DIR "$ENV{CARGO_TARGET_DIR}")
else()
    set(CARGO_TARGET_DIR "${HOPLITE_ROOT}/target")
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(CARGO_PROFILE dev)
    set(CARGO_ARCHIVE "${CARGO_TARGET_DIR}/debug/libhoplite_c.a")
    set(HOPLITE_STRIP "")
else()
    set(CARGO_PROFILE library)
    set(CARGO_ARCHIVE "${CARGO_TARGET_DIR}/library/libhoplite_c.a")
    # The standard library comes with 40 MB of debug information.
    set(HOPLITE_STRIP --strip-debug)
endif()

# cargo decides whether anything changed. Only a library that is nothing but an archive is optimized at link time. Less
# unrolling and inlining there saves half a megabyte, and measures the same: vector instructions remain.
set(LINK_TIME "-Cllvm-args=-unroll-runtime=false -unroll-threshold=20 -unroll-allow-partial=false -inline-threshold=75")
add_custom_target(hoplite_archive
    COMMAND "${CARGO}" rustc --quiet --locked --profile "${CARGO_PROFILE}" --target-dir "${CARGO_TARGET_DIR}"
        --package hoplite-c --lib --crate-type staticlib -- "${LINK_TIME}"
    BYPRODUCTS "${CARGO_ARCHIVE}"
    WORKING_DIRECTORY "${HOPLITE_ROOT}"
    COMMENT "Compiling hoplite-c with cargo"
    VERBATIM USES_TERMINAL)

# Section groups are dissolved: the linker would take a group of another library in Rust for the same, and drop it with
# symbols that it needs. Rust's standard library includes LLVM bitcode, which other tools than Rust's cannot read.
set(HOPLITE_OBJECT "${PROJECT_BINARY_DIR}/hoplite.o")
add_custom_command(OUTPUT "${HOPLITE_OBJECT}"
    COMMAND "${CMAKE_LINKER}" -r --force-group-allocation --whole-archive "${CARGO_ARCHIVE}" -o "${HOPLITE_OBJECT}.all"
    COMMAND "${CMAKE_OBJCOPY}" --wildcard --keep-global-symbol=hoplite_* --remove-section=.llvmbc
        --remove-section=.llvmcmd ${HOPLITE_STRIP} "${HOPLITE_OBJECT}.all" "${HOPLITE_OBJECT}"
    COMMAND "${CMAKE_COMMAND}" -E rm "${HOPLITE_OBJECT}.all"
    DEPENDS hoplite_archive "${CARGO_ARCHIVE}"
    COMMENT "Hiding all symbols but hoplite_*"
    VERBATIM)
add_custom_target(hoplite_object DEPENDS "${HOPLITE_OBJECT}")
set_source_files_properties("${HOPLITE_OBJECT}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
