#!/bin/sh
# A run that is stopped and started again ends where one that was never stopped ends, and goes on on another number of ranks:
# test_resume.sh RESUME SHERD.
set -eu
resume=$(realpath "$1")
sherd=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
cd "$scratch"

# expect WANTED GOT
expect() {
    if [ "$1" != "$2" ]; then
        printf 'wanted %s, got %s\n' "$1" "$2"
        exit 1
    fi
    echo "$2"
}

for ranks in 1 2; do
    whole=$("$sherd" launch -n $ranks "$resume" whole$ranks 300)
    "$sherd" launch -n $ranks "$resume" parts$ranks 120
    expect "$(echo "$whole" | sed 's/steps 1 /steps 101 /')" "$("$sherd" launch -n $ranks "$resume" parts$ranks 300)"
done
case $("$resume" parts2 350) in
"steps 301 to 350: "*) ;;
*) echo "a checkpoint of two ranks is not resumed by one" && exit 1 ;;
esac
