# The images for GPUs. CUDA's libraries come with the Python packages. The node provides the driver (NVIDIA
# container toolkit); an image requests its capabilities in NVIDIA_DRIVER_CAPABILITIES.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS python
ENV LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

FROM python AS builder
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_CACHE_DIR=/cache/pip UV_CACHE_DIR=/cache/uv
COPY docker/requirements/build.txt /build/build.txt
RUN --mount=type=cache,target=/cache/pip python -m pip install --quiet --require-hashes -r /build/build.txt
RUN python -m venv --without-pip /opt/lookout
ENV UV_LINK_MODE=copy UV_PYTHON=/opt/lookout/bin/python

FROM builder AS code
COPY pyproject.toml README.md LICENSE THIRD_PARTY.md /build/
COPY libs /build/libs
COPY services /build/services
RUN --mount=type=cache,target=/cache/uv uv pip install --quiet --python /usr/local/bin/python \
    --no-deps --no-build-isolation --target /code /build

FROM builder AS decode-deps
COPY docker/requirements/decode-gpu.txt /build/requirements.txt
RUN --mount=type=cache,target=/cache/uv uv pip install --quiet --require-hashes -r /build/requirements.txt

FROM python AS base
LABEL org.opencontainers.image.vendor="Lookout" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 lookout && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp lookout
ENV PATH=/opt/lookout/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp LOOKOUT_METRICS_PORT=9090 \
    NVIDIA_VISIBLE_DEVICES=all
USER 10001:10001
WORKDIR /tmp
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['LOOKOUT_METRICS_PORT'] + '/livez', timeout=2)"]

# vLLM, and the part of torch that prune-encode needs. They have ten gigabytes, so they are installed in place:
# copied from another stage, with a cache of wheels, they would be on the builder's disk four times. They are
# three layers because a layer is on that disk four times while it is committed, and because registries limit a
# layer's size (GitHub's: ten gigabytes). --no-deps: the list is complete, and vLLM requires packages that it
# leaves out (pyproject.toml, override-dependencies). Triton compiles C at its first kernel: a compiler and the
# C library's headers stay in the image.
FROM base AS model
USER 0:0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=builder /opt/lookout /opt/lookout
RUN --mount=type=bind,from=builder,source=/usr/local/bin,target=/build \
    --mount=type=bind,source=docker/requirements,target=/requirements \
    --mount=type=bind,source=docker/gpu_packages.sh,target=/gpu_packages.sh \
    sh /gpu_packages.sh prefill-gpu.txt nvidia-
RUN --mount=type=bind,from=builder,source=/usr/local/bin,target=/build \
    --mount=type=bind,source=docker/requirements,target=/requirements \
    --mount=type=bind,source=docker/gpu_packages.sh,target=/gpu_packages.sh \
    sh /gpu_packages.sh prefill-gpu.txt "torch|triton"
# what is there already is left alone
RUN --mount=type=bind,from=builder,source=/usr/local/bin,target=/build \
    --mount=type=bind,source=docker/requirements,target=/requirements \
    --mount=type=bind,source=docker/gpu_packages.sh,target=/gpu_packages.sh \
    sh /gpu_packages.sh prefill-gpu.txt .
COPY docker/compile_check.py /tmp/compile_check.py
USER 10001:10001
RUN python /tmp/compile_check.py

FROM model AS prune-encode-gpu
LABEL org.opencontainers.image.title="lookout-prune-encode-gpu" \
      org.opencontainers.image.description="Frames in, tokens of the patches that changed out; on a GPU"
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=code /code /opt/lookout/lib/python3.11/site-packages
ENTRYPOINT ["python", "-m", "lookout.services.prune_encode"]

FROM model AS prefill-gpu
LABEL org.opencontainers.image.title="lookout-prefill-gpu" \
      org.opencontainers.image.description="Tokens in, one verdict for each window and watch out; vLLM on a GPU"
# vLLM writes compiled kernels and configuration; only /tmp is writable.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility LOOKOUT_ENGINE=vllm VLLM_NO_USAGE_STATS=1 \
    XDG_CACHE_HOME=/tmp/cache VLLM_CACHE_ROOT=/tmp/cache/vllm TRITON_CACHE_DIR=/tmp/cache/triton
COPY --from=code /code /opt/lookout/lib/python3.11/site-packages
ENTRYPOINT ["python", "-m", "lookout.services.prefill"]

# CUDA needs a large address space and the video capability: this decoder runs in a container of its own.
FROM base AS decode-gpu
LABEL org.opencontainers.image.title="lookout-decode-gpu" \
      org.opencontainers.image.description="Camera segments in, sampled frames and motion out; NVDEC"
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
COPY --from=decode-deps /opt/lookout /opt/lookout
COPY --from=code /code /opt/lookout/lib/python3.11/site-packages
ENTRYPOINT ["python", "-m", "lookout.services.decode"]
