package keda

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda/externalscaler"
)

// DefaultNamespace is KEDA's namespace in its chart.
const DefaultNamespace = "keda"

// service through which KEDA reaches the operator, in the operator's namespace.
const service = "metalfleet-operator-keda"

// ServiceName is the name in the certificate that KEDA expects.
func ServiceName(namespace string) string { return service + "." + namespace + ".svc" }

// Bounds of the port: a trigger's metadata is small, and each ScaledObject has one
// stream.
const (
	mostBytes   = 64 << 10
	mostStreams = 4096
	handshake   = 10 * time.Second
)

// Server serves KEDA at every operator replica: each receives all reports of gateways.
type Server struct {
	Scaler *Scaler
	Pass   *Pass
	// Address to listen on.
	Address string
	// Certificate for the Service's name.
	Certificate func(context.Context) (*tls.Certificate, error)
	Log         logr.Logger
}

// NeedLeaderElection returns false: every replica listens.
func (*Server) NeedLeaderElection() bool { return false }

// Start listens until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	l, err := intake.Listen(s.Address)
	if err != nil {
		return fmt.Errorf("listen for KEDA (--keda-bind-address): %w", err)
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(mostBytes), grpc.MaxConcurrentStreams(mostStreams),
		grpc.ConnectionTimeout(handshake), grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute}), grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.note))
	failures := slog.NewLogLogger(logr.ToSlogHandler(s.Log), slog.LevelDebug)
	externalscaler.RegisterExternalScalerServer(g, s.Scaler)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		g.Stop() // KEDA asks another replica
	}()
	if err := g.Serve(intake.Authenticate(l, s.tls(), failures)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve KEDA: %w", err)
	}
	<-ended
	return nil
}

// note logs refused calls at debug level; KEDA logs them as well.
func (s *Server) note(ctx context.Context, r any, info *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (any, error) {
	out, err := answer(ctx, r)
	if err != nil {
		s.Log.V(1).Info("Rejected a request of KEDA", "call", info.FullMethod, "reason", err.Error())
	}
	return out, err
}

// tls accepts only KEDA; each handshake uses the current certificates.
func (s *Server) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: agentapi.Curves(), NextProtos: []string{"h2"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			pass, err := s.Pass.current(hello.Context())
			if err != nil {
				return nil, err
			}
			certificate, err := s.Certificate(hello.Context())
			if err != nil {
				return nil, err
			}
			return &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: agentapi.Curves(), NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*certificate},
				// The certificate is self-signed: it is compared, and TLS verifies the key.
				ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
				VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error { return s.Pass.check(pass, raw) }}, nil
		}}
}

// Keeper maintains the certificate in KEDA's Secret, at the leading operator.
type Keeper struct {
	Pass *Pass
	Log  logr.Logger
}

// NeedLeaderElection returns true: one replica writes.
func (*Keeper) NeedLeaderElection() bool { return true }

// Start maintains it until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	tick := k.Pass.Clock.NewTicker(passEach)
	defer tick.Stop()
	failing := false
	for {
		err := k.Pass.keep(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			k.Log.Error(err, "Cannot provide a client certificate for KEDA; KEDA receives no metrics")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}
