package external

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// service through which the API server reaches the operator, in its namespace.
const service = "metalfleet-operator-metrics-api"

// ServiceName is the name in the certificate that the API server expects.
func ServiceName(namespace string) string { return service + "." + namespace + ".svc" }

const (
	// vouchEach is the interval at which the CA bundle of the APIService is checked.
	vouchEach = 30 * time.Second
	endTime   = 2 * time.Second
)

// Server serves the API server at every operator replica: each receives all reports of
// gateways. The chart grants the permissions that it needs in addition to the operator's if
// it is enabled.
type Server struct {
	Handler *Handler
	Vouched *Vouched
	// Address to listen on.
	Address string
	// Certificate for the Service's name, and the Authority that signed it, in PEM.
	Certificate func(context.Context) (*tls.Certificate, error)
	Authority   func(context.Context) ([]byte, error)
	// Client writes the CA bundle of the APIService.
	Client client.Client
	Log    logr.Logger
}

// NeedLeaderElection returns false: every replica listens.
func (*Server) NeedLeaderElection() bool { return false }

// Start listens until ctx ends.
func (s *Server) Start(ctx context.Context) error {
	l, err := intake.Listen(s.Address)
	if err != nil {
		return fmt.Errorf("listen for external metrics requests (--metrics-api-bind-address): %w", err)
	}
	h := &http.Server{Handler: s.Handler, TLSConfig: s.Vouched.TLS(s.Certificate), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(s.Log), slog.LevelDebug)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.keep(ctx)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if h.Shutdown(ending) != nil {
			_ = h.Close()
		}
	}()
	if err := h.Serve(intake.Authenticate(l, h.TLSConfig, h.ErrorLog)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve external metrics: %w", err)
	}
	<-ended
	return nil
}

// keep updates the APIService until ctx ends.
func (s *Server) keep(ctx context.Context) {
	tick := time.NewTicker(vouchEach)
	defer tick.Stop()
	failing := false
	for {
		err := s.vouch(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			s.Log.Error(err, "Cannot register as the server of external metrics; HPA and KEDA receive no metrics")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// vouch writes the CA bundle of the APIService if it differs.
func (s *Server) vouch(ctx context.Context) error {
	authority, err := s.Authority(ctx)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{} // its Go type is in k8s.io/kube-aggregator, which nothing else here needs
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	name := "v1beta1." + metrics.GroupName
	if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, u); err != nil {
		return fmt.Errorf("read APIService %s, which the chart creates: %w", name, err)
	}
	if to, _, _ := unstructured.NestedString(u.Object, "spec", "service", "name"); to != service {
		return fmt.Errorf("APIService %s refers to Service %q: another program already serves external metrics, and only one can", name, to)
	}
	before := u.DeepCopy()
	if err := unstructured.SetNestedField(u.Object, encode(authority), "spec", "caBundle"); err != nil {
		return err
	}
	patch := client.MergeFrom(before)
	if data, err := patch.Data(u); err != nil || string(data) == "{}" {
		return err
	}
	if err := s.Client.Patch(ctx, u, patch, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("write the CA bundle of APIService %s: %w", name, err)
	}
	return nil
}

func encode(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
