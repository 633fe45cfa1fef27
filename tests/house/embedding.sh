#!/bin/sh
# The examples of docs/embedding.md, as they stand there, against an installed sherd: embedding.sh BUILD SOURCE. Each is built and
# trains the guide's example. A build system that is not here is skipped, and so is the kind of library that this build has not.
set -eu
build=$1
source=$2
here=$source/tests/house
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$scratch/root"
pc=$(find "$scratch/root" -name sherd.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
sed -i "s|^prefix=.*|prefix=$scratch/root$prefix|" "$pc"
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir sherd)

# wanted PROGRAM: whether this build has the kind of library that the program links.
wanted() {
    case $1 in
    *-static) [ -e "$libdir/libsherd.a" ] ;;
    *) [ -e "$libdir/libsherd.so" ] ;;
    esac
}
programs=""
for program in fit fit-static; do
    if wanted $program; then programs="$programs $program"; else echo "no library for $program in this build"; fi
done

# take HEADING LANGUAGE: the example under that heading of the page.
take() {
    awk -v heading="## $1" -v language="$2" -f "$here/block.awk" "$source/docs/embedding.md" >"$scratch/example"
    [ -s "$scratch/example" ] || { echo "docs/embedding.md has no example in $2 under $1" && exit 1; }
    cat "$scratch/example"
}

# enter NAME: a folder with the program's source.
enter() {
    mkdir "$scratch/$1"
    cd "$scratch/$1"
    cp "$source/examples/minimal/minimal.c" fit.c
}

# trained FOLDER WHAT: each program runs.
trained() {
    for program in $programs; do
        got=$("$1/$program")
        if [ "$got" != "rank 0 of 1: y = 3.00 x + 1.00" ]; then
            echo "$2, $program: $got"
            exit 1
        fi
        case $program-$(ldd "$1/$program" | grep -c libsherd) in
        fit-1 | fit-static-0) ;;
        *) echo "$2: $program is not linked as its name says" && exit 1 ;;
        esac
        echo "$2: $program trains"
    done
}

# The lines of the command that need a kind of library that is not here are left out.
enter command
take 'On the command line' sh >run.sh
wanted fit || sed -i '/-o fit$/d' run.sh
wanted fit-static || sed -i '/-o fit-static$/d' run.sh
sh -eu run.sh
trained . 'the command line'

if command -v make >/dev/null; then
    enter make
    take Make make >Makefile
    # shellcheck disable=SC2086
    make -s $programs
    trained . make
else
    echo "make is not here: its example is skipped"
fi

if command -v cmake >/dev/null; then
    enter cmake
    take CMake cmake >CMakeLists.txt
    cmake -S . -B build >setup.log || { cat setup.log && exit 1; }
    # shellcheck disable=SC2086
    cmake --build build --target $programs >build.log || { cat build.log && exit 1; }
    trained build cmake
else
    echo "cmake is not here: its example is skipped"
fi

enter meson
take 'Meson, with sherd installed' meson >meson.build
wanted fit || sed -i "/^executable('fit',/d" meson.build
wanted fit-static || sed -i "/^executable('fit-static',/d" meson.build
meson setup build >setup.log || { cat setup.log && exit 1; }
ninja -C build >build.log || { cat build.log && exit 1; }
trained build meson
