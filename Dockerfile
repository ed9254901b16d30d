# Two images. docs/containers.md says how each is used.
#
#   docker build --target agent -t sparkd .          sparkd itself: coordinator, agent, command line
#   docker build --target rank -t sparkd-vllm .      a vLLM image made ready for ranks: --build-arg BASE=IMAGE
#
# Ranks run in any image with vLLM; `rank` only makes sure, at its build, of what sparkd would find wrong later.

ARG BASE=vllm/vllm-openai:latest
ARG PYTHON=python:3.12-slim

FROM ${PYTHON} AS build
# For a site without an index: --build-arg PIP_OPTIONS="--no-index --find-links=/src/wheels"
ARG PIP_OPTIONS=""
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/sparkd && /opt/sparkd/bin/python -m pip install --no-cache-dir ${PIP_OPTIONS} ".[enrol]"

FROM ${PYTHON} AS agent
COPY --from=build /opt/sparkd /opt/sparkd
# The coordinator needs no privilege. An agent does, to watch a node and to end its ranks: --user 0.
RUN useradd --system --uid 7070 --home-dir /var/lib/sparkd --create-home sparkd
ENV PATH=/opt/sparkd/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SPARKD_CONFIG_DIR=/var/lib/sparkd/config \
    XDG_STATE_HOME=/var/lib
USER sparkd
WORKDIR /var/lib/sparkd
VOLUME /var/lib/sparkd
# Once before: sparkd init --no-node --no-service --address ADDRESS
CMD ["sparkd", "coordinator", "run"]

FROM ${BASE} AS rank
# sparkd starts `python3 -m vllm.entrypoints.cli.main`; its mods, its shim and the models are mounted.
RUN ["python3", "-I", "-c", "from importlib.metadata import version; print('vLLM', version('vllm'))"]
ENTRYPOINT []
CMD []
