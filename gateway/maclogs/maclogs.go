// Package maclogs passes the ends of logs of agents and engines on to administrators, over the
// connection or tunnel that the gateway has to each Mac.
//
// It owns the port for them, which listens on the loopback interface of the gateway's Pod
// alone: who may create pods/portforward there may read logs. It refuses other addresses, and
// more than agentapi.MaxLogBytes of a log. Agents and engines log no prompts and no answers.
//
// Start reading at Handler.ServeHTTP.
package maclogs

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/scrape"
	"metalfleet.dev/metalfleet/gateway/route"
)

// patience is how long a Mac may take.
const patience = 15 * time.Second

// atOnce bounds the answers in memory.
const atOnce = 4

// Listen listens on an address of the loopback interface.
func Listen(address string) (net.Listener, error) {
	if !scrape.Open(address) {
		return nil, fmt.Errorf("%s is no address of the loopback interface: logs are for those who may forward ports of this Pod; use 127.0.0.1:8083", address)
	}
	return intake.Listen(address)
}

// Handler serves GET /logs/MAC, the agent's log, and /logs/MAC/ENGINE, where ENGINE is
// v1alpha1.EngineFile. The query parameter bytes is required.
type Handler struct {
	mux  http.ServeMux
	macs func() []route.Mac
	to   func(route.Mac) http.RoundTripper
	room chan struct{}
}

// New returns a handler that asks these Macs.
func New(macs func() []route.Mac, to func(route.Mac) http.RoundTripper) *Handler {
	h := &Handler{macs: macs, to: to, room: make(chan struct{}, atOnce)}
	h.mux.HandleFunc("GET /logs/{mac}", h.serve)
	h.mux.HandleFunc("GET /logs/{mac}/{engine}", h.serve)
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	select {
	case h.room <- struct{}{}:
		defer func() { <-h.room }()
	default:
		http.Error(w, "other logs are being read; try again in a moment", http.StatusServiceUnavailable)
		return
	}
	name := r.PathValue("mac")
	for _, m := range h.macs() {
		if m.Name != name {
			continue
		}
		path := agentapi.PathLogs
		if engine := r.PathValue("engine"); engine != "" {
			path += "/" + engine
		}
		log, status, err := h.ask(r.Context(), m, path, r.URL.Query().Get("bytes"))
		switch {
		case err != nil:
			http.Error(w, fmt.Sprintf("this gateway cannot read it from Mac %s: %v", name, err), http.StatusBadGateway)
		case status == http.StatusNotFound:
			http.Error(w, fmt.Sprintf("Mac %s has no such log: the engine never started there, or the agent is an older one", name), status)
		case status == http.StatusBadRequest:
			http.Error(w, fmt.Sprintf("bytes must be a number from 1 to %d", agentapi.MaxLogBytes), status)
		case status != http.StatusOK:
			http.Error(w, fmt.Sprintf("the agent of Mac %s answered with status %d", name, status), http.StatusBadGateway)
		default:
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write(log) // the client may have gone
		}
		return
	}
	http.Error(w, "this gateway knows no Mac "+name, http.StatusNotFound)
}

// ask returns what a Mac answers.
func (h *Handler) ask(ctx context.Context, m route.Mac, path, bytes string) ([]byte, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r := &http.Request{Method: http.MethodGet, Header: http.Header{}, Host: m.Address,
		URL: &url.URL{Scheme: "https", Host: m.Address, Path: path, RawQuery: url.Values{"bytes": {bytes}}.Encode()}}
	resp, err := h.to(m).RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or cancelled
	log, err := io.ReadAll(io.LimitReader(resp.Body, agentapi.MaxLogBytes))
	return log, resp.StatusCode, err
}
