#!/bin/sh
# A client that has an unpacked sherd as a subproject, as docs/embedding.md has it: subproject.sh SOURCE CORE_CLIENT GPT2. It builds the library
# and nothing else of ours, of the kind that it builds its own of; our warnings are no errors there, and its tests stay its own.
# The static library is the core alone: what CORE_CLIENT and GPT2 (examples/gpt2) train with it has the bits that they get from all of it.
set -eu
source=$1
core_client=$(realpath "$2")
gpt2=$(realpath "$3")
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

# with KIND OPTION...: the client in a folder of that name. Comparing floats is right in sherd and reported by this warning.
with() {
    kind=$1
    shift
    CFLAGS=-Wfloat-equal meson setup "$kind" client --buildtype=plain -Ddefault_library="$kind" "$@" >"$kind.log" || { cat "$kind.log" && exit 1; }
    meson introspect "$kind" --targets >"$kind.targets"
    expect "programs, $kind" "fit" "$(names executable "$kind")"
    expect "what is linked, $kind" "sherd" "$(names "$kind library" "$kind" | grep -v sherd_)"
    expect "tests, $kind" "fit" "$(meson introspect "$kind" --tests | tr ',' '\n' | sed -n 's/.*"name": "\([^"]*\)".*/\1/p')"
}

# names TYPE KIND: the targets of that type.
names() {
    tr '{' '\n' <"$2.targets" | sed -n "s/.*\"name\": \"\([^\"]*\)\".*\"type\": \"$1\".*/\1/p"
}

with shared
with static -Dsherd:modules=none
ninja -C static >static.build || { cat static.build && exit 1; }
grep -q 'Wfloat-equal' static.build || { echo "no warning was reported: this test shows nothing about them" && exit 1; }
meson install -C static --quiet --destdir "$scratch/root"
expect "installed programs" "fit" "$(find root -path '*/bin/*' -printf '%f\n')"
expect "the example" "rank 0 of 1: y = 3.00 x + 1.00" "$(static/fit)"
expect "the commit" '#define SHERDI_COMMIT "release"' "$(cat static/subprojects/sherd/sherd_commit.h)"
pc=$(find root -name sherd.pc)
# core_link SOURCE ARGS: builds it with the core alone.
core_link() {
    # shellcheck disable=SC2046
    cc -I"$source/include" "$@" static/subprojects/sherd/libsherd.a \
        $(PKG_CONFIG_PATH=${pc%/*} pkg-config --static --libs-only-l sherd | sed 's/-lsherd//') -lm -pthread
}
core_link "$source/tests/house/core_client.c" -o core_client
core_link -O2 -ffp-contract=off "$source/examples/gpt2/gpt2.c" -o core_gpt2
expect "a limit of memory" \
    "SHERD_MEMORY_LIMIT: this build has no module limits; build with -Dmodules=all, or with its name among those of -Dmodules" \
    "$(SHERD_MEMORY_LIMIT=100000 ./core_client 2>&1 | head -n 1)"
expect "the weights of a run at stage 3" "$("$core_client")" "$(./core_client)"
expect "a call of a module that is not there" \
    "SHERD_E_NOTSUP: sherd_checkpoint_save: this build has no module checkpoints; build with -Dmodules=all, or with its name among those of -Dmodules" \
    "$(./core_client absent | tail -n 1)"
expect "a launcher, where ranks are threads" \
    "sherd_world_from_env: this build has no module processes; build with -Dmodules=all, or with its name among those of -Dmodules" \
    "$(RANK=0 WORLD_SIZE=2 static/fit 2>&1 || true)"
awk 'BEGIN { for (i = 0; i < 400; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >text
small="--data text --length 16 --layers 2 --width 16 --heads 2 --steps 4 --batch 2 --ranks 2"
# shellcheck disable=SC2086
expect "the reference trainer" "$("$gpt2" $small)" "$(./core_gpt2 $small)"
absent="this build has no module checkpoints; build with -Dmodules=all, or with its name among those of -Dmodules"
# shellcheck disable=SC2086
expect "checkpoints, before the first step" "gpt2: a rank fails: sherd_checkpoint_wait: $absent" "$(./core_gpt2 $small --ranks 1 --save kept 2>&1 || true)"
# refused OPTION WANTED: a configuration that ends with that message.
refused() {
    expect "$1" "$2" "$(meson setup refused client -Dsherd:modules=none "$1" 2>&1 | sed -n 's/.*ERROR: //p')"
}
refused -Dsherd:modules=json "Problem encountered: -Dmodules=json needs declarations,differences,encodings,options,reals,schedules,tiers,bounce too"
refused -Dsherd:cuda=enabled "Feature cuda cannot be enabled: -Dmodules leaves out the module cuda"
tail -n 1 static.build
