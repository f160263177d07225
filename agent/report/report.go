// Package report is the agent's only writer to the API: it applies the status
// of the Mac's own MacNode.
//
// It owns how often that happens: conditions, reclaims and everything that
// others act on at once; progress at most every 2 s; figures at most every
// 30 s, and only when they moved by more than 1 % or 64 MiB; and of large
// statuses no more than 16 KiB a second in the long run. What did not
// change is not written. What came while a write was under way goes with the
// next. It refuses to force a conflict: a field that another writer owns stays
// theirs; and to send what the API server's schema has not, because an older
// one would refuse the whole report for it. It decides nothing about what a
// status says.
//
// Start reading at due, then Reporter.Run, then node.prune.
package report

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reporter writes the newest status that it was offered.
type Reporter struct {
	// Reported, if set, is called after each write.
	Reported func()

	log   logr.Logger
	write func(context.Context, *v1alpha1.MacNodeStatus) error
	wakes chan struct{}

	mu    sync.Mutex // guards what follows
	next  *v1alpha1.MacNodeStatus
	again bool
}

// New reports to the MacNode called name what the schema has; nil means all.
func New(c client.Client, schema *Schema, name string, log logr.Logger) *Reporter {
	return newReporter(log, func(ctx context.Context, s *v1alpha1.MacNodeStatus) error {
		err := apply(ctx, c, schema, name, s)
		if apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsInternalError(err) {
			schema.doubt()
		}
		return err
	})
}

func newReporter(log logr.Logger, write func(context.Context, *v1alpha1.MacNodeStatus) error) *Reporter {
	return &Reporter{log: log, write: write, wakes: make(chan struct{}, 1)}
}

// apply writes a status by server-side apply. Only what the agent owns is in it,
// and of that only what the API server knows: it may be older than this agent. It
// takes over the fields that an earlier manager set, which may be the API server
// by a default of the schema.
func apply(ctx context.Context, c client.Client, schema *Schema, name string, s *v1alpha1.MacNodeStatus) error {
	status, err := schema.fit(ctx, within(s, MaxTextBytes))
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	if err := c.Status().Apply(ctx, ac.MacNode(name).WithStatus(status), client.FieldOwner(v1alpha1.ManagerAgent), client.ForceOwnership); err != nil {
		return fmt.Errorf("report status of MacNode %s: %w", name, err)
	}
	return nil
}

// Offer hands over the newest status. It does not wait, and the caller does
// not change the status afterwards.
func (r *Reporter) Offer(s *v1alpha1.MacNodeStatus) {
	r.mu.Lock()
	r.next = s
	r.mu.Unlock()
	r.wake()
}

// Again makes the next write happen although nothing changed: the object that
// was written to is no longer there.
func (r *Reporter) Again() {
	r.mu.Lock()
	r.again = true
	r.mu.Unlock()
	r.wake()
}

func (r *Reporter) wake() {
	select {
	case r.wakes <- struct{}{}:
	default:
	}
}

// take returns the newest status, and whether it is to be written regardless.
func (r *Reporter) take() (*v1alpha1.MacNodeStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := r.again
	r.again = false
	return r.next, again
}

const (
	writeLimit = 10 * time.Second
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Run writes until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	var sent *v1alpha1.MacNodeStatus
	var sentAt time.Time
	pace := newPace()
	for {
		next, again := r.take()
		if again {
			sent = nil
		}
		after, needed := due(sent, next)
		wait := max(after-time.Since(sentAt), pace.wait(after == 0))
		if needed && wait <= 0 {
			if !r.writeUntilDone(ctx, &next) {
				return ctx.Err()
			}
			sent, sentAt = next, time.Now()
			pace.written(sent)
			continue
		}
		if !r.pause(ctx, needed, wait) {
			return ctx.Err()
		}
	}
}

// pause waits for something new, and for the time at which what is known has
// to be written.
func (r *Reporter) pause(ctx context.Context, needed bool, wait time.Duration) bool {
	var late <-chan time.Time
	if needed {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.wakes:
	case <-late:
	}
	return true
}

// writeUntilDone writes the newest status until that succeeds; next is what
// was written in the end.
func (r *Reporter) writeUntilDone(ctx context.Context, next **v1alpha1.MacNodeStatus) bool {
	for failures := 0; ; failures++ {
		attempt, cancel := context.WithTimeout(ctx, writeLimit)
		err := r.write(attempt, *next)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			if failures > 0 {
				r.log.Info("Status is reported again", "failures", failures)
			}
			if r.Reported != nil {
				r.Reported()
			}
			return true
		}
		if failures == 0 {
			r.log.Error(err, "Failed to report status; retrying")
		}
		pause := min(retryMost, retryFirst<<min(failures, 10))
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
		*next, _ = r.take()
	}
}

// Last writes one status at the agent's end, once, within ctx.
func (r *Reporter) Last(ctx context.Context, s *v1alpha1.MacNodeStatus) error {
	err := r.write(ctx, s)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("report the agent's shutdown: %w", err)
	}
	return err
}
