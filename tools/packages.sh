# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/setup.sh and tools/setup-tests.sh: installs system packages with the machine's own
# package manager, says so first, asks nothing. With apt or brew only; elsewhere it names what is missing.

say() { printf 'splash: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        sudo "$@"
    else
        say "not root and no sudo: run this as root: $*"
        return 1
    fi
}

apt_install() {
    say "installing with apt-get: $*"
    # The lists may be empty (a fresh container) or old: try as it is, then once more with new lists.
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1; then
        as_root apt-get update -qq >&2
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null || {
            say "apt-get could not install: $*"
            return 1
        }
    fi
}

brew_install() {
    [ $# -gt 0 ] || return 0
    say "installing with brew: $*"
    HOMEBREW_NO_AUTO_UPDATE=1 brew install --quiet "$@" >&2
}

# install_packages "DEBIAN NAMES" "BREW NAMES"
install_packages() {
    if has apt-get; then
        apt_install $1
    elif has brew; then
        brew_install $2
    else
        say "missing packages, and neither apt-get nor brew is here. Debian names: $1"
        return 1
    fi
}
