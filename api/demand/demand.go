// Package demand is the contract for the reports in which gateways send the
// operator the demand for each model.
//
// It owns the report, the plausibility checks on it, and the identity of the
// operator. It rejects figures that no gateway can have counted. A gateway
// authenticates with its client certificate, as on the port of a Mac.
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

// Path accepts a Report as JSON, by POST.
const Path = "/metalfleet/v1/demand"

// Every is the maximum interval between two reports of a gateway. A gateway
// reports at once when a request begins to wait.
const Every = time.Second

// MaxBytes is the maximum size of a report.
const MaxBytes = 8 << 20

// OperatorName is the DNS name in the operator's server certificate.
const OperatorName = "operator.metalfleet.dev"

// Limits of a report: no gateway can have counted more.
const (
	maxReplicas = 100_000
	maxRequests = 10_000_000
	maxMacs     = 20_000
	maxName     = 320
)

// ErrInvalid is returned for a report that cannot be true.
var ErrInvalid = errors.New("invalid demand report")

// Report holds all counts of one gateway at one time. Models and replicas that
// it does not name have no requests there.
type Report struct {
	// Gateway identifies one run of a gateway: it is generated when the program
	// starts.
	Gateway string `json:"gateway"`
	// UpMillis is how long the gateway has accepted requests.
	UpMillis int64 `json:"upMillis"`
	// Last marks the final report of a gateway that shuts down.
	Last bool `json:"last,omitempty"`
	// Models are the models that clients have requested.
	Models []Model `json:"models,omitempty"`
	// CutRunning is how many running requests belong to models that Cut removed.
	CutRunning int `json:"cutRunning,omitempty"`
	// Replicas is the number of unfinished requests that this gateway has sent
	// to each replica, by UID.
	Replicas map[string]int `json:"replicas,omitempty"`
	// Reached are the UIDs of the Macs to which a connection worked, and
	// Unreached those to which none could be opened, with the error.
	Reached   []string          `json:"reached,omitempty"`
	Unreached map[string]string `json:"unreached,omitempty"`
}

// Reach is what the reports of all gateways together say about one Mac.
type Reach struct {
	// Known is false while no gateway has reported on the Mac.
	Known bool
	// Gateways reported, and By of them reached it.
	Gateways, By int
	// Err of one that did not.
	Err string
}

// Model is the demand for one deployment.
type Model struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Running requests were sent to replicas; Waiting requests are in the
	// queue.
	Running int `json:"running,omitempty"`
	Waiting int `json:"waiting,omitempty"`
	// OldestMillis is how long the oldest request in the queue has waited.
	OldestMillis int64 `json:"oldestMillis,omitempty"`
	// Begun is the total number of requests; it may restart at zero.
	Begun uint64 `json:"begun,omitempty"`
}

// Check rejects a report that cannot be true, after Cut. A gateway counts requests at
// replicas and for models in one place, so both sums must be equal.
func (r *Report) Check() error {
	if r.Gateway == "" || len(r.Gateway) > maxName {
		return fmt.Errorf("%w: it does not name its gateway", ErrInvalid)
	}
	if r.UpMillis < 0 || len(r.Models) > maxModels || len(r.Replicas) > maxReplicas {
		return fmt.Errorf("%w: up for %d ms, %d models, %d replicas", ErrInvalid, r.UpMillis, len(r.Models), len(r.Replicas))
	}
	if len(r.Reached)+len(r.Unreached) > maxMacs {
		return fmt.Errorf("%w: %d Macs", ErrInvalid, len(r.Reached)+len(r.Unreached))
	}
	for _, text := range r.Unreached {
		if len(text) > maxName {
			return fmt.Errorf("%w: an error of %d bytes", ErrInvalid, len(text))
		}
	}
	if r.CutRunning < 0 || r.CutRunning > maxRequests {
		return fmt.Errorf("%w: %d requests of models that are left out", ErrInvalid, r.CutRunning)
	}
	running, sent := r.CutRunning, 0
	seen := make(map[[2]string]bool, len(r.Models))
	for _, m := range r.Models {
		key := [2]string{m.Namespace, m.Name}
		if m.Namespace == "" || m.Name == "" || len(m.Namespace)+len(m.Name) > maxName || seen[key] {
			return fmt.Errorf("%w: a model name is empty or appears twice", ErrInvalid)
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
		return fmt.Errorf("%w: %d running requests by model, but %d by replica", ErrInvalid, running, sent)
	}
	return nil
}

// ServerTLS returns the TLS configuration of the operator's listener, which
// accepts only gateways.
func ServerTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	return agentapi.ServerTLS(getCertificate, roots)
}

// ClientTLS returns the TLS configuration with which a gateway dials the
// operator, at any address.
func ClientTLS(getCertificate func() (*tls.Certificate, error), roots *x509.CertPool) *tls.Config {
	c := agentapi.ClientTLS(getCertificate, roots, "")
	c.ServerName = OperatorName
	return c
}
