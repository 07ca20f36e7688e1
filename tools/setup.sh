#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a build needs: a C compiler, make, pkg-config and the libraries of the Makefile. Looks first;
# touches nothing when all is there.
set -eu
cd "$(dirname "$0")/.."
. tools/packages.sh

compiles() { # a compiler that finds the C library's headers
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' | "$1" -x c -fsyntax-only - 2>/dev/null
}
have_compiler() { compiles "${CC:-cc}" || compiles gcc || compiles clang; }
have_library() { has pkg-config && pkg-config --exists "$1"; }

debian=
brew=
need() { # "debian names" "brew names"
    debian="$debian $1"
    brew="$brew $2"
}
have_compiler || need "gcc libc6-dev" ""
has make || need "make" "make"
has pkg-config || need "pkg-config" "pkg-config"
have_library jansson || need "libjansson-dev" "jansson"
have_library libpcre2-8 || need "libpcre2-dev" "pcre2"
have_library libutf8proc || need "libutf8proc-dev" "utf8proc"
have_library libcrypto || need "libssl-dev" "openssl@3"
have_library libmicrohttpd || need "libmicrohttpd-dev" "libmicrohttpd"
have_library libedit || need "libedit-dev" "libedit"
[ -z "$debian$brew" ] || install_packages "$debian" "$brew"
have_compiler || {
    say "no working C compiler: install gcc or clang (macOS: xcode-select --install)"
    exit 1
}
