package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"metalfleet.dev/metalfleet/controllers"
)

// A restarted API server does not know its roles in the first moments, and denies all
// requests; only a lasting denial counts.
func TestAnAPIServerThatRefusesAtFirstIsAwaited(t *testing.T) {
	env := cluster(t)
	real, err := url.Parse(env.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(env.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusForbidden, http.StatusUnauthorized, http.StatusInternalServerError} {
		var refusals atomic.Int64
		refusals.Store(2)
		onward := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(real) }}
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refusals.Add(-1) >= 0 {
				w.WriteHeader(status)
				return
			}
			onward.ServeHTTP(w, r)
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := prepare(ctx, logr.Discard(), &rest.Config{Host: front.URL}, controllers.DefaultNamespace); err != nil {
			t.Errorf("%d at first: %v", status, err)
		}
		refusals.Store(1 << 40)
		began := time.Now()
		err := prepare(ctx, logr.Discard(), &rest.Config{Host: front.URL}, controllers.DefaultNamespace)
		if err == nil || strings.Contains(err.Error(), "stopped") || time.Since(began) < settleTimeout {
			t.Errorf("%d again and again: %v after %s", status, err, time.Since(began))
		}
		cancel()
		front.Close()
	}
}
