#!/usr/bin/env bash
# Downloads what the project builds with from Debian or Ubuntu and unpacks it, installing nothing, so that a
# machine without these packages can build against the folder: fetch-debs.sh DIR [ARCHIVE], then check.sh --carried DIR
# there, or the archive, which has all that is in the folder (fetch-nccl.sh before).
set -euo pipefail
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: tests/gpu/fetch-debs.sh DIR [ARCHIVE]" >&2
    exit 2
fi
archive=$([ $# = 1 ] || realpath -m "$2")

# Headers; the libraries that they stand for follow. pkgconf and ninja for a machine that has none.
WANTED="libjansson-dev libhwloc-dev liburing-dev libxxhash-dev libopenblas-pthread-dev libopenmpi-dev openmpi-bin pkgconf-bin ninja-build"
# Of the machine itself, everywhere: another one's would take the place of its own.
OWN="^(libc6|libc-bin|libgcc-s1|libstdc\+\+6|libc6-dev|libcrypt1|libpam.*|libsystemd0|libselinux1|libdbus.*|libssl.*|libcrypto.*)$"
# Big, and nothing here calls them.
UNUSED="^(libhwloc-plugins|libjs-.*|libicu.*|libxml2.*|libx11.*)$"

mkdir -p "$1"
cd "$1"
echo '*' >.gitignore
mkdir -p .packages

# What a package depends on, one a line; of several that would do, the first.
depends() {
    apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$1" |
        awk '/^ \|?(Pre)?Depends:/ || /^  (Pre)?Depends:/ { if (!is_other) print $2; is_other = /\|/ }'
}

# The libraries that packages need, and theirs, and the packages.
closure() {
    local todo="$*" seen=" " package
    while [ -n "$todo" ]; do
        package=${todo%% *}
        todo=${todo#"$package"}
        todo=${todo# }
        case $seen in *" $package "*) continue ;; esac
        seen="$seen$package "
        echo "$package"
        todo="$todo $(depends "$package" | awk -v own="$OWN" -v unused="$UNUSED" \
            '/^lib/ && !/-(dev|dbg|doc)$/ && $0 !~ own && $0 !~ unused')"
        todo=$(echo "$todo" | xargs)
    done
}

# shellcheck disable=SC2086
closure $WANTED | sort >.packages/list
echo "downloading $(wc -l <.packages/list) packages"
(
    cd .packages
    while read -r package; do
        # One that only others provide has no file of its own.
        apt-get download -q "$package" >/dev/null 2>download.log || echo "left out: $package ($(tail -n 1 download.log))"
    done <list
)
for deb in .packages/*.deb; do
    dpkg -x "$deb" .
done

# meson from PyPI, since an older one does not run on every newer Python. A wheel is an archive of its files.
if python3 -m pip download -q --no-deps -d .packages meson; then
    python3 -m zipfile -e .packages/meson-*.whl usr/share/sherd-meson
else
    echo "left out: meson (no pip, or no network)"
fi

# What building and running does not need; static libraries are most of it.
find . \( -name '*.a' -o -name 'liblapack*' -o -name '*.mod' \) -delete
rm -rf .packages/*.deb .packages/*.whl usr/share/doc usr/share/man usr/share/locale usr/share/lintian usr/share/bug usr/sbin usr/lib/*/fortran var
du -sh --exclude=.packages . | awk '{ print "unpacked " $1 }'
if [ -n "$archive" ]; then
    mkdir -p "$(dirname "$archive")"
    tar czf "$archive" --exclude=.packages -C "$(dirname "$PWD")" "$(basename "$PWD")"
    du -h "$archive" | awk '{ print "packed " $1 }'
fi
