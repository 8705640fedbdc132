#!/bin/sh
# For development (Tiltfile): runs a service from a copy of its code that a live update may write to, although the
# image belongs to root and is read only, and starts it again when it ends. `kill $(cat $LOOKOUT_CODE/pid)`
# ends it. The copy lies in a volume of the pod and outlives a container, changes included.
set -u
code=${LOOKOUT_CODE:-/tmp/code}
if [ ! -d "$code/lookout" ]; then
    installed=$(python -c 'import importlib.util as u; print(u.find_spec("lookout").submodule_search_locations[0])')
    mkdir -p "$code/new" && cp -r "$installed" "$code/new/lookout" && mv "$code/new/lookout" "$code/lookout" || exit 1
fi
export PYTHONPATH="$code"

child=
stopped=
trap 'stopped=yes; kill -TERM "$child"' TERM INT
while [ -z "$stopped" ]; do
    python -m "$@" &
    child=$!
    echo "$child" > "$code/pid"
    wait "$child"
    result=$?
    # A signal to this shell ends `wait` first; the service is still stopping then.
    [ -z "$stopped" ] || { wait "$child"; exit 0; }
    # What fails at once is not started in a tight loop: a line of code is probably being written.
    [ "$result" -eq 0 ] || sleep 2
done
