package demand

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/intake"
)

// endTime is how long requests may continue when the operator stops.
const endTime = 2 * time.Second

// Server receives the reports of gateways, at every operator replica.
type Server struct {
	Ledger *Ledger
	// Address to listen on.
	Address string
	// TLS accepts only gateways.
	TLS func() *tls.Config
	// Urgent is called with deployments that are to be evaluated now.
	Urgent func(types.NamespacedName)
	Log    logr.Logger

	mu     sync.Mutex
	active map[string]int // requests in progress by address, guarded by mu
}

// maxActive bounds the reports of an address that are read at the same time: a gateway sends one
// after another, and each may take 30 MiB while it is read.
const maxActive = 4

// begin counts a request of an address; false if it has too many.
func (s *Server) begin(from string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[from] == maxActive {
		return false
	}
	if s.active == nil {
		s.active = map[string]int{}
	}
	s.active[from]++
	return true
}

func (s *Server) end(from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[from]--; s.active[from] == 0 {
		delete(s.active, from)
	}
}

// NeedLeaderElection returns false: gateways report to every operator replica, so that a
// new leader knows the load already, and each replica can serve external metrics.
func (*Server) NeedLeaderElection() bool { return false }

// Start listens until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	l, err := intake.Listen(s.Address)
	if err != nil {
		return fmt.Errorf("listen for reports of gateways (--demand-bind-address): %w", err)
	}
	s.Ledger.Listen()
	h := &http.Server{Handler: s, TLSConfig: s.TLS(), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(s.Log), slog.LevelDebug)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if h.Shutdown(ending) != nil {
			_ = h.Close()
		}
	}()
	if err := h.Serve(intake.Authenticate(l, h.TLSConfig, h.ErrorLog)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve reports of gateways: %w", err)
	}
	<-ended
	return nil
}

// ServeHTTP receives one report.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != demand.Path {
		http.Error(w, "not found; the only route is POST "+demand.Path, http.StatusNotFound)
		return
	}
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !s.begin(from) {
		http.Error(w, "too many reports of this address are in progress; send one after another", http.StatusTooManyRequests)
		return
	}
	defer s.end(from)
	var report demand.Report
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, demand.MaxBytes)).Decode(&report); err != nil {
		http.Error(w, "invalid report: "+err.Error(), http.StatusBadRequest)
		return
	}
	urgent, err := s.Ledger.Take(from, &report)
	if err != nil {
		s.Log.Info("Rejected the report of a gateway; no deployment is scaled down meanwhile", "reason", err.Error())
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, key := range urgent {
		s.Urgent(key)
	}
	w.WriteHeader(http.StatusNoContent)
}
