// Package demand is the contract by which gateways tell the operator what is
// asked of each model.
//
// It owns the report, what of it can be believed at all, and who the operator
// proves to be. It refuses figures that nobody can have counted. A gateway proves
// itself with its client certificate, as at the port of a Mac.
//
// Start reading at Report.
package demand

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// DefaultPort is the operator's port for reports.
const DefaultPort = 8443

// Path takes a Report as JSON, by POST.
const Path = "/metalfleet/v1/demand"

// Every is how often a gateway reports at least; one that has begun to make a
// request wait reports at once.
const Every = time.Second

// MaxBytes bounds a report.
const MaxBytes = 8 << 20

// OperatorName is the DNS name in the operator's server certificate.
const OperatorName = "operator.metalfleet.dev"

// Bounds of a report: no gateway can have counted more.
const (
	maxModels   = 20_000
	maxReplicas = 100_000
	maxRequests = 10_000_000
	maxName     = 320
)

// ErrInvalid says that a report cannot be true.
var ErrInvalid = errors.New("not a report that a gateway can make")

// Report is all that one gateway counts, at one time. What it does not name has
// no requests there.
type Report struct {
	// Gateway tells gateways apart, and one from its successor: it is made when the
	// program starts.
	Gateway string `json:"gateway"`
	// UpMillis is how long the gateway has taken requests.
	UpMillis int64 `json:"upMillis"`
	// Last says that this gateway ends, and reports no more.
	Last bool `json:"last,omitempty"`
	// Models that were asked for.
	Models []Model `json:"models,omitempty"`
	// Replicas are the requests that this gateway has sent to each and that have not
	// ended, by UID.
	Replicas map[string]int `json:"replicas,omitempty"`
}

// Model is what is asked of one deployment.
type Model struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Running were sent to replicas; Waiting are in the waiting room.
	Running int `json:"running,omitempty"`
	Waiting int `json:"waiting,omitempty"`
	// OldestMillis is how long the one waits that waits longest.
	OldestMillis int64 `json:"oldestMillis,omitempty"`
	// Begun counts the requests that ever came; it may begin anew.
	Begun uint64 `json:"begun,omitempty"`
}

// Check refuses what cannot be true. A gateway counts requests at replicas and
// at models in one place, so the two sums are one.
func (r *Report) Check() error {
	if r.Gateway == "" || len(r.Gateway) > maxName {
		return fmt.Errorf("%w: it does not say which gateway it is from", ErrInvalid)
	}
	if r.UpMillis < 0 || len(r.Models) > maxModels || len(r.Replicas) > maxReplicas {
		return fmt.Errorf("%w: up for %d ms, %d models, %d replicas", ErrInvalid, r.UpMillis, len(r.Models), len(r.Replicas))
	}
	running, sent := 0, 0
	seen := make(map[[2]string]bool, len(r.Models))
	for _, m := range r.Models {
		key := [2]string{m.Namespace, m.Name}
		if m.Namespace == "" || m.Name == "" || len(m.Namespace)+len(m.Name) > maxName || seen[key] {
			return fmt.Errorf("%w: a model without a name, or named twice", ErrInvalid)
		}
		seen[key] = true
		if m.Running < 0 || m.Waiting < 0 || m.Running > maxRequests || m.Waiting > maxRequests || m.OldestMillis < 0 ||
			m.Waiting == 0 && m.OldestMillis > 0 {
			return fmt.Errorf("%w: %d requests run, %d wait, the oldest for %d ms", ErrInvalid, m.Running, m.Waiting, m.OldestMillis)
		}
		running += m.Running
	}
	for _, n := range r.Replicas {
		if n < 0 || n > maxRequests {
			return fmt.Errorf("%w: %d requests at a replica", ErrInvalid, n)
		}
		sent += n
	}
	if running != sent {
		return fmt.Errorf("%w: %d requests of models run, and %d at replicas", ErrInvalid, running, sent)
	}
	return nil
}

// ServerTLS is how the operator listens: for gateways alone.
func ServerTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	return agentapi.ServerTLS(getCertificate, roots)
}

// ClientTLS is how a gateway dials the operator, whatever its address.
func ClientTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	c := agentapi.ClientTLS(getCertificate, roots, "")
	c.ServerName = OperatorName
	return c
}
