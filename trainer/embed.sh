#!/bin/sh
# Writes a text file as lines of a C string literal.
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/.*/"&\\n"/' "$1"
