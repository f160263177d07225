#!/bin/bash
# Compiles and links for a Mac with zig: what Go takes for CC (compiler.sh cc) and CXX (compiler.sh cxx).
# The system's libc++ has to be the one that is loaded, because a catch finds an exception of libmlx by the address of
# its type: zig's own libc++, which would bring types of its own, is compiled against and never linked. zig cc links
# C++ too, and libc++ comes from the stub.
# usage: compiler.sh cc|cxx ARGUMENTS...   with ZIG, ZIG_GLOBAL_CACHE_DIR and ZIG_LOCAL_CACHE_DIR (run.sh sets them)
language=$1
shift
target=aarch64-macos.14.0
case " $* " in
  *" -### "*) cd "${TMPDIR:-/tmp}" ;; # Go's question for the version would leave a file "-.o" here
esac
case " $* " in
  *" -c "* | *" -E "* | *" -S "*)
    if [ "$language" = cxx ]; then
      # Nothing that macOS 14's libc++ lacks.
      exec "$ZIG" c++ -target "$target" "$@" -U_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS -D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1
    fi
    ;;
esac
exec "$ZIG" cc -target "$target" "$@"
