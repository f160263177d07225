// Package register is the agent's way into the Kubernetes API: a client that
// knows the kinds that an agent has to do with, the following of one object, the
// heartbeat, and the condition by which an agent says whether it takes orders.
//
// It owns the Lease "mac-NAME" while it renews it; the operator made it. Of two
// agents with one identity the second finds out there, and ends. It
// refuses lists and everything else that an agent has no business with: its whole world are four objects by name, its own requests for
// certificates, and tokens of its own account. A failure of the API is waited
// out and never taken for a deletion.
//
// Start reading at NewClient, then Follow.
package register

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// NewClient makes a client for MacNodes, MacAssignments, Leases, Secrets, requests for
// certificates and tokens of accounts. It needs no discovery, so it works
// before the API does. There is no client-side rate
// limit: what an agent writes is bounded where it is decided.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	c := rest.CopyConfig(config)
	c.QPS = -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, certificatesv1.AddToScheme, authenticationv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("create scheme: %w", err)
		}
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("MacNode"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion.WithKind("MacAssignment"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	mapper.Add(certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"), meta.RESTScopeRoot)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	cl, err := client.NewWithWatch(c, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return cl, nil
}

// Heartbeat renews the Mac's Lease.
type Heartbeat struct {
	// Renewed, if set, is called after each renewal.
	Renewed func()
	// Shared, if set, is called after another agent wrote the Lease of this Mac.
	Shared func()

	log   logr.Logger
	renew func(ctx context.Context, now time.Time) error
	await func(ctx context.Context) error
}

// NewHeartbeat renews the Lease of the Mac called name in namespace; holder
// identifies this start of the agent, and dir stores what must survive it.
func NewHeartbeat(c client.Client, namespace, name, holder, dir string, log logr.Logger) *Heartbeat {
	l := &lease{client: c, key: types.NamespacedName{Namespace: namespace, Name: v1alpha1.AgentObjectName(name)}, holder: holder, dir: dir, log: log}
	h := &Heartbeat{log: log, renew: l.renew, await: l.await}
	l.shared = func() {
		if h.Shared != nil {
			h.Shared()
		}
	}
	return h
}

// Await returns once this agent may begin; see lease.await.
func (h *Heartbeat) Await(ctx context.Context) error { return h.await(ctx) }

const (
	renewEvery = v1alpha1.LeaseRenewSeconds * time.Second
	renewLimit = 5 * time.Second
	retryFirst = 200 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Run renews until ctx ends or another agent has this identity, ten seconds apart with a jitter, and sooner after
// a failure.
func (h *Heartbeat) Run(ctx context.Context) error {
	failures := 0
	for {
		attempt, cancel := context.WithTimeout(ctx, renewLimit)
		err := h.renew(attempt, time.Now())
		cancel()
		pause := jitter(renewEvery)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrFenced):
			return err
		case err != nil:
			pause = retryPause(failures)
			if failures++; failures == 1 {
				h.log.Error(err, "Failed to renew the Lease; retrying")
			}
		case failures > 0:
			h.log.Info("Lease is renewed again", "failures", failures)
			failures = 0
		}
		if err == nil && h.Renewed != nil {
			h.Renewed()
		}
		if !Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// jitter spreads d over nine to eleven tenths of it.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5)
}

func retryPause(failures int) time.Duration {
	return jitter(min(retryMost, retryFirst<<min(failures, 10)))
}

// Sleep waits for d, and reports false when ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Replaced is the condition Accepting of an agent that makes way for another,
// or has not proved itself yet.
func Replaced(since time.Time) metav1.Condition {
	c := Accepting(false, since)
	c.Reason, c.Message = v1alpha1.ReasonAgentUpgrading, "the agent is being upgraded; its engines keep running"
	return c
}

// Leaving is the condition Accepting of an agent whose Mac is about to become
// unavailable: v1alpha1.ReasonMacSleeps or ReasonMacShutsDown.
func Leaving(reason string, since time.Time) metav1.Condition {
	c := Accepting(false, since)
	c.Reason, c.Message = reason, "the Mac is about to sleep"
	if reason == v1alpha1.ReasonMacShutsDown {
		c.Message = "the Mac is about to shut down or restart"
	}
	return c
}

// Accepting is the condition of a MacNode by which its agent says whether it
// takes orders; since is when that changed.
func Accepting(yes bool, since time.Time) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted,
		Message: "the agent accepts assignments", LastTransitionTime: metav1.NewTime(since),
	}
	if !yes {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonShuttingDown, "the agent is shutting down; its engines keep running"
	}
	return c
}
