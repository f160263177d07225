# Images of the two programs that run in the cluster: static, without a shell, not as root.
#   docker build --target operator -t ghcr.io/metalfleet/operator:dev .
#   docker build --target gateway  -t ghcr.io/metalfleet/gateway:dev .
FROM --platform=$BUILDPLATFORM golang:1.26.5@sha256:3aff6657219a4d9c14e27fb1d8976c49c29fddb70ba835014f477e1c70636647 AS build
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=unversioned
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY agent agent
COPY controllers controllers
COPY gateway gateway
COPY metal metal
COPY cmd cmd
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/ ./cmd/operator ./cmd/gateway

FROM scratch AS operator
COPY --from=build /out/operator /operator
USER 65532:65532
ENTRYPOINT ["/operator"]

FROM scratch AS gateway
COPY --from=build /out/gateway /gateway
USER 65532:65532
ENTRYPOINT ["/gateway"]
