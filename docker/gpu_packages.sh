#!/bin/sh
# gpu_packages.sh LIST NAMES: installs the packages of a locked list whose names begin so, as one layer of gpu.Dockerfile.
set -e
awk -v names="^($2)" '/^[^ #]/ { taken = $0 ~ names } taken' "/requirements/$1" > /tmp/packages.txt
test -s /tmp/packages.txt
# The cache of wheels lies on the layer's own disk: files are linked from it, not copied.
SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_CACHE_DIR=/opt/lookout/wheels UV_LINK_MODE=hardlink \
  UV_PYTHON=/opt/lookout/bin/python /build/uv pip install --quiet --no-deps --require-hashes -r /tmp/packages.txt
rm -rf /opt/lookout/wheels /tmp/packages.txt
