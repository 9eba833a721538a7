# Makes two Debian packages: the shared library, and what is needed to compile programs.
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps)
if(NOT DPKG_SHLIBDEPS)
    message(FATAL_ERROR "dpkg-shlibdeps is missing, which computes dependencies: install the package dpkg-dev")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hoplite)
set(CPACK_PACKAGE_VENDOR Hoplite)
set(CPACK_PACKAGE_CONTACT "Hoplite maintainers <hoplite-collectives@users.noreply.github.com>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL "${RUNTIME_PACKAGE}" "${DEVELOPMENT_PACKAGE}")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "${PROJECT_HOMEPAGE_URL}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

# Variables of CPack contain the name of the package in upper case.
string(TOUPPER "${RUNTIME_PACKAGE}" RUNTIME)
set(CPACK_DEBIAN_${RUNTIME}_PACKAGE_NAME "${RUNTIME_PACKAGE}")
set(CPACK_DEBIAN_${RUNTIME}_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_${RUNTIME}_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_${RUNTIME}_DESCRIPTION
"Hoplite keeps immutable objects in the shared memory of each host. Processes
get them without copying, and nodes broadcast and reduce them while they are
created.
.
This package contains the library for programs in C and C++.")

string(TOUPPER "${DEVELOPMENT_PACKAGE}" DEVELOPMENT)
set(CPACK_DEBIAN_${DEVELOPMENT}_PACKAGE_NAME "${DEVELOPMENT_PACKAGE}")
set(CPACK_DEBIAN_${DEVELOPMENT}_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_${DEVELOPMENT}_PACKAGE_DEPENDS
    "${RUNTIME_PACKAGE} (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_${DEVELOPMENT}_DESCRIPTION
"This package contains what is needed to compile programs that use Hoplite:
headers for C and C++20, the static library, a pkg-config file and a CMake
package.")

# Updates the cache of the dynamic linker. CPack adds scripts that run ldconfig too, which lintian reports.
set(DEBIAN "${PROJECT_BINARY_DIR}/debian")
file(WRITE "${DEBIAN}/triggers" "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_${RUNTIME}_PACKAGE_CONTROL_EXTRA "${DEBIAN}/triggers")
file(WRITE "${DEBIAN}/${RUNTIME_PACKAGE}" "${RUNTIME_PACKAGE}: maintscript-calls-ldconfig *\n")
install(FILES "${DEBIAN}/${RUNTIME_PACKAGE}"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/lintian/overrides" COMPONENT "${RUNTIME_PACKAGE}")

# The documents that Debian's policy requires of each package.
string(TIMESTAMP DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE "${DEBIAN}/changelog" "hoplite (${PROJECT_VERSION}) unstable; urgency=medium

  * Version ${PROJECT_VERSION}: see ${PROJECT_HOMEPAGE_URL}.

 -- ${CPACK_PACKAGE_CONTACT}  ${DATE}
")
execute_process(COMMAND gzip --best --no-name --force "${DEBIAN}/changelog" COMMAND_ERROR_IS_FATAL ANY)
file(WRITE "${DEBIAN}/copyright" "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Hoplite
Source: ${PROJECT_HOMEPAGE_URL}

Files: *
Copyright: 2026 Hoplite contributors
License: Apache-2.0
 On Debian systems, the text of the license is in
 /usr/share/common-licenses/Apache-2.0.
")
foreach(package "${RUNTIME_PACKAGE}" "${DEVELOPMENT_PACKAGE}")
    install(FILES "${DEBIAN}/copyright" "${DEBIAN}/changelog.gz"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${package}" COMPONENT "${package}")
endforeach()

include(CPack)
