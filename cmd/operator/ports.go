package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/scrape"
)

// portEnd is how long requests for probes and metrics may continue when the operator stops.
const portEnd = 2 * time.Second

// servePorts adds the ports of probes and metrics to the manager. Anyone in the cluster may
// connect to them, and the manager's own servers would accept any number of connections with
// 1 MiB of headers each.
func servePorts(mgr ctrl.Manager, config *rest.Config, s settings) error {
	if !off(s.health) {
		l, err := intake.Listen(s.health)
		if err != nil {
			return fmt.Errorf("listen for probes (--health-bind-address): %w", err)
		}
		ok := func(http.ResponseWriter, *http.Request) {}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /healthz", ok)
		mux.HandleFunc("GET /readyz", ok)
		if err := addPort(mgr, "health", intake.Port(l), mux); err != nil {
			return err
		}
	}
	if off(s.metrics) {
		return nil
	}
	l, err := intake.Listen(s.metrics)
	if err != nil {
		return fmt.Errorf("listen for metrics (--metrics-bind-address): %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+scrape.Path, promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	bounded, figures, err := scrape.Serve(l, mux, config)
	if err != nil {
		return err
	}
	return addPort(mgr, "metrics", bounded, figures)
}

// off reports whether an address disables its port.
func off(address string) bool { return address == "" || address == "0" }

func addPort(mgr ctrl.Manager, name string, l net.Listener, h http.Handler) error {
	end := portEnd
	failures := slog.NewLogLogger(logr.ToSlogHandler(mgr.GetLogger().WithName(name)), slog.LevelDebug)
	if err := mgr.Add(&manager.Server{Name: name, Server: intake.PortServer(h, failures), Listener: l, ShutdownTimeout: &end}); err != nil {
		return fmt.Errorf("port of %s: %w", name, err)
	}
	return nil
}
