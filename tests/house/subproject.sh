#!/bin/sh
# A client that has an unpacked sherd as a subproject, as docs/embedding.md has it: subproject.sh SOURCE. It builds the library and nothing else of ours, of the
# kind that it builds its own of; our warnings are no errors there, and its tests stay its own.
set -eu
source=$1
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

mkdir -p "$scratch/client/subprojects/sherd"
for entry in "$source"/*; do # no .git among them
    ln -s "$entry" "$scratch/client/subprojects/sherd"
done
cp "$source/examples/minimal/minimal.c" "$scratch/client/fit.c"
awk -v heading='## Meson, with sherd as a subproject' -v language=meson -f "$source/tests/house/block.awk" "$source/docs/embedding.md" \
    >"$scratch/client/meson.build"
[ -s "$scratch/client/meson.build" ] || { echo "docs/embedding.md has no example of a subproject" && exit 1; }
cd "$scratch"
if command -v git >/dev/null; then
    git init -q client
    git -C client -c user.name=client -c user.email=client@localhost commit -q --allow-empty -m client
fi

# expect WHAT WANTED GOT
expect() {
    if [ "$2" != "$3" ]; then
        printf '%s: wanted\n%s\ngot\n%s\n' "$1" "$2" "$3"
        exit 1
    fi
    echo "$1: as wanted"
}

# with KIND: the client in a folder of that name. Comparing floats is right in sherd and told by this warning.
with() {
    CFLAGS=-Wfloat-equal meson setup "$1" client --buildtype=plain -Ddefault_library="$1" >"$1.log" || { cat "$1.log" && exit 1; }
    meson introspect "$1" --targets >"$1.targets"
    expect "programs, $1" "fit" "$(names executable "$1")"
    expect "what is linked, $1" "sherd" "$(names "$1 library" "$1" | grep -v sherd_)"
    expect "tests, $1" "fit" "$(meson introspect "$1" --tests | tr ',' '\n' | sed -n 's/.*"name": "\([^"]*\)".*/\1/p')"
}

# names TYPE KIND: the targets of that type.
names() {
    tr '{' '\n' <"$2.targets" | sed -n "s/.*\"name\": \"\([^\"]*\)\".*\"type\": \"$1\".*/\1/p"
}

with shared
with static
ninja -C static >static.build || { cat static.build && exit 1; }
grep -q 'Wfloat-equal' static.build || { echo "no warning was told: this test shows nothing about them" && exit 1; }
meson install -C static --quiet --destdir "$scratch/root"
expect "installed programs" "fit" "$(find root -path '*/bin/*' -printf '%f\n')"
expect "the example" "rank 0 of 1: y = 3.00 x + 1.00" "$(static/fit)"
expect "the commit" '#define SHERDI_COMMIT "release"' "$(cat static/subprojects/sherd/sherd_commit.h)"
tail -n 1 static.build
