# A checkout with all that it needs, without GPUs:
#   docker build --tag giaann-dask .
#   docker run --rm giaann-dask                                          (make demo)
#   docker run --rm giaann-dask .venv/bin/giaann-dask doctor             (any command)
FROM python:3.11-slim

# PyTorch for CPUs; PyPI's brings the libraries of CUDA, which are several gigabytes. An empty value takes PyPI's.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# Any version of make will do.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --no-install-recommends --yes make \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 giaann \
 && install --directory --owner=giaann /opt/giaann_dask

USER 1000
WORKDIR /opt/giaann_dask
COPY --chown=giaann . .
RUN PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 PIP_EXTRA_INDEX_URL=$TORCH_INDEX make .venv/ready

CMD ["make", "demo"]
