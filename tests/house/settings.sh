#!/bin/sh
# A key of config_keys.h has a reader: settings.sh SOURCE. It sets a field of the settings, or some code of
# the configuration takes its value (naming it in a `case` or a comparison is not that), and every setting that is made of
# the keys is read by the engine.
set -eu
cd "$1/engine"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
failed=0

# Keys. Members of a block are read, so blocks are left out.
awk '/^(KEY|PLAIN)\(/ { print row; row = "" } { row = row $0 } END { print row }' config/config_keys.h >"$scratch/rows"
sed -i -E 's/^PLAIN\(("[^"]*")/KEY(plain:\1, \1/; s/plain:"([^"]*)"/plain:\1/' "$scratch/rows"
sed -nE 's/^KEY\(([^,]*), "([^"]*)".*/\1 \2/p' "$scratch/rows" >"$scratch/keys"
sed -nE 's/^KEY\(([^,]*), "[^"]*", BLOCK,.*/\1/p' "$scratch/rows" >"$scratch/blocks"
cat config/config*.c optimizers/*.c | sed 's/case SHERDI_CONFIG_[A-Z0-9_]*//g; s/[!=]= SHERDI_CONFIG_[A-Z0-9_]*//g' |
    grep -oE 'SHERDI_CONFIG_[A-Z0-9_]+' | sed 's/SHERDI_CONFIG_//' | sort -u >"$scratch/taken"
sed -nE 's/^KEY\(([^,]*),.* (SETS|DTYPE|TIER|SCHEDULE)\(.*/\1/p' "$scratch/rows" >>"$scratch/taken"
while read -r id path; do
    if ! grep -qx "$id" "$scratch/blocks" && ! grep -qx "$id" "$scratch/taken"; then
        echo "$path is in config_keys.h, but nothing takes its value"
        failed=1
    fi
done <"$scratch/keys"

# Settings. The fields of the structs that a configuration resolves to, without comments.
fields() {
    awk 'BEGIN { RS = "[*]/" } { sub(/\/[*].*/, ""); printf "%s", $0 }' "$1" | tr '\n' ' ' |
        grep -oE "typedef struct $2 \{[^}]*\}" | sed 's/[^{]*{//; s/}//' | tr ';,' '\n\n' |
        sed 's/\[.*//' | grep -oE '[a-z_0-9]+ *$' | tr -d ' '
}
{
    grep -roE 'typedef struct sherdi_[a-z_]*settings' --include='*.h' . | sed 's/:.* / /' | while read -r header struct; do
        fields "$header" "$struct"
    done
    fields optimizers/scaler.h sherdi_scaler_params
    fields optimizers/schedule.h sherdi_schedule_params
} >"$scratch/fields"
readers=$(find . -name '*.[ch]' ! -name 'config*')
# shellcheck disable=SC2086
sed 's/\/\*.*//' $readers | grep -oE '(\.|->)[a-z_0-9]+' | sed 's/^[.>-]*//' | sort -u >"$scratch/read"
while read -r field; do
    if ! grep -qx "$field" "$scratch/read"; then
        echo "the setting $field is made, but nothing in the engine reads it"
        failed=1
    fi
done <"$scratch/fields"

# Both lists are there at all.
for count in keys fields; do
    if [ "$(wc -l <"$scratch/$count")" -lt 40 ]; then
        echo "only $(wc -l <"$scratch/$count") $count were found: this test no longer understands the table"
        failed=1
    fi
done
[ $failed = 0 ] && echo "$(wc -l <"$scratch/keys") honoured keys and $(wc -l <"$scratch/fields") settings have readers"
exit $failed
