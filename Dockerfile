FROM golang:1.26-bookworm AS build
WORKDIR /src

# Modules on a layer of their own: they change seldom.
COPY go.mod go.sum ./
RUN go mod download

COPY . .
ARG VERSION=dev
# SQLite takes minutes to compile; the cache mount keeps it from build to build.
RUN --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w -X main.version=$VERSION" -o /jpintel .


# A small Debian and not an empty image: the entrypoint needs a shell and setpriv,
# and so does whoever has to look inside a running machine.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tzdata \
    && rm -rf /var/lib/apt/lists/*

# A fixed uid, because files on the volume keep their owner's number.
RUN groupadd --gid 10001 jpintel \
    && useradd --uid 10001 --gid jpintel --no-create-home --home-dir /data \
        --shell /bin/sh jpintel \
    && install -d -o jpintel -g jpintel -m 0700 /data

COPY --chmod=0755 scripts/entrypoint /usr/local/bin/entrypoint
COPY --from=build /jpintel /usr/local/bin/jpintel

# SQLite's temporary files go where there is room for them: a RAM-backed /tmp
# would take the memory that the process needs.
ENV JPINTEL_DB=/data/jpintel.db \
    SQLITE_TMPDIR=/data

# No USER: the entrypoint starts as root to take the volume over, then drops.
WORKDIR /data
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["entrypoint", "jpintel"]
CMD ["serve"]
