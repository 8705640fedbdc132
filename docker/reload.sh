#!/bin/sh
# For development (Tiltfile): runs a service from a copy of its code, and restarts it when it ends. A live
# update can write to the copy, although the image belongs to root and is read-only. `kill $(cat
# $LOOKOUT_CODE/pid)` ends the service. The copy is in a volume of the pod, so it and its changes outlive a
# container.
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
    # A signal to this shell ends `wait` before the service has stopped.
    [ -z "$stopped" ] || { wait "$child"; exit 0; }
    # Do not restart a service that fails at once in a tight loop: its code is probably being edited.
    [ "$result" -eq 0 ] || sleep 2
done
