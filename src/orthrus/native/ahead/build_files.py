"""How build systems find a model's library: files for CMake and pkg-config, for any place it is moved to."""

from __future__ import annotations

_CMAKE = """\
# {name}: find_package({name} CONFIG), then link {name}::{name}, or {name}::static for the archive.
get_filename_component(_{name}_root "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)
if(NOT TARGET {name}::{name})
  add_library({name}::{name} SHARED IMPORTED)
  set_target_properties({name}::{name} PROPERTIES
    IMPORTED_LOCATION "${{_{name}_root}}/lib/lib{name}.so"
    IMPORTED_SONAME "lib{name}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${{_{name}_root}}/include")
  add_library({name}::static STATIC IMPORTED)
  set_target_properties({name}::static PROPERTIES
    IMPORTED_LOCATION "${{_{name}_root}}/lib/lib{name}.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{_{name}_root}}/include"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
unset(_{name}_root)
"""
_PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: {name}
Description: A model compiled by Orthrus
Version: 1.0
Libs: -L${{libdir}} -l{name}
Libs.private: -pthread
Cflags: -I${{includedir}}
"""


def texts(name: str) -> dict[str, str]:
    """By path below the folder of libraries: the files for a model's library."""
    return {f"cmake/{name}/{name}Config.cmake": _CMAKE.format(name=name),
            f"pkgconfig/{name}.pc": _PKG_CONFIG.format(name=name)}
