#!/bin/sh
# tools/require_memory.sh GIB GPU_GIB: fails where less memory is free, so that a job ends by its name and not by
# the kernel's killer. GPU_GIB 0 asks for no GPU.
set -eu

require() {
    if [ "$3" -lt "$2" ]; then
        echo "loadproof: $1: expected $2 MiB free, found $3. Take a larger machine, or end what else runs there." >&2
        exit 1
    fi
    echo "$1: $3 MiB free, $2 wanted"
}

require memory "$(($1 * 1024))" "$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)"
[ "$2" -eq 0 ] && exit 0
require "GPU memory" "$(($2 * 1024))" \
    "$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | sort -n | tail -n 1)"
