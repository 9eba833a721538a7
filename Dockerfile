# A node in a container: docker build --tag hoplite . && docker run --stop-timeout 45 hoplite
# docs/deploy/docker.md explains its use.
ARG PYTHON=docker.io/library/python:3.13-slim-bookworm

FROM docker.io/library/rust:1.95-slim-bookworm AS rust

# Unlike the slim image, this one has a C compiler.
FROM docker.io/library/python:3.13-bookworm AS build
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
ENV PATH=/usr/local/cargo/bin:$PATH RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo
RUN pip install --no-cache-dir maturin==1.16.0
COPY . /hoplite
WORKDIR /hoplite
RUN maturin build --release --locked --strip --out /wheels

FROM scratch AS wheel
COPY --from=build /wheels /

# hadolint ignore=DL3006
FROM ${PYTHON}
# The user has a fixed number, so that files and other containers can be prepared for it.
RUN --mount=type=bind,from=wheel,target=/wheels \
    pip install --no-cache-dir --root-user-action=ignore /wheels/*.whl && \
    useradd --system --uid 7420 --user-group hoplite && \
    install --directory --owner hoplite --group hoplite --mode 0700 /run/hoplite
USER 7420:7420
ENV HOPLITE_SOCKET=/run/hoplite/node.sock
EXPOSE 7420
# The node hands over its objects and leaves.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["hoplite", "status"]
ENTRYPOINT ["hoplite"]
CMD ["node"]
