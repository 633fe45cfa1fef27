# Prints the blocks of code of one language under one heading of a page: awk -v heading='## Make' -v language=make -f block.awk PAGE
/^#/ && !inside { is_there = $0 == heading }
/^```/ && inside { inside = 0; next }
/^```/ { inside = 1; is_wanted = is_there && $0 == "```" language; next }
inside && is_wanted { print }
