package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"metalfleet.dev/metalfleet/agent/account"
	"metalfleet.dev/metalfleet/agent/join"
	contract "metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	system "metalfleet.dev/metalfleet/test/fleet"
)

// enrolled is how many Macs join with one token, all at once.
const enrolled = 50

var enrolmentFigures = []scenario.Figure{
	{Name: fmt.Sprintf("%d Macs join with one enrolment token, until all are ready", enrolled), Unit: "s", Of: "enrolment/ready", Bound: report.Under(120).Every()},
	{Name: "until the last one has its identity", Unit: "s", Of: "enrolment/joined"},
}

// enrolment lets many Macs join at once, each through the agent's own join and registration,
// and fails unless the token admits exactly as many.
func enrolment(ctx context.Context, e *scenario.Env, r *report.Report) error {
	models, err := e.Scratch()
	if err != nil {
		return err
	}
	return e.Measure(ctx, r, 0, enrolmentFigures, scenario.One("enrolment", func(ctx context.Context) (v scenario.Values, err error) {
		o := system.Options{Root: ".", ModelRoot: models, Say: func(s string) { fmt.Fprintln(e.Log, s) }}
		err = system.With(ctx, o, e.Logs, func(ctx context.Context, f *system.Fleet) (err error) {
			m := newMacs(ctx, f)
			defer m.stop()
			v, err = m.enrolAll(ctx)
			return errors.Join(err, m.failure())
		})
		return v, err
	}))
}

func (m *macs) enrolAll(ctx context.Context) (scenario.Values, error) {
	server, ca, err := jointoken.Endpoint(m.fleet.Env.Config())
	if err != nil {
		return nil, err
	}
	text, _, err := jointoken.MintEnrolment(ctx, m.fleet.Client, jointoken.EnrolmentOptions{
		Name: "lab", Count: enrolled, Namespace: system.Namespace, Server: server, CA: ca})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	joining, limited := errgroup.WithContext(ctx)
	for i := range enrolled {
		joining.Go(func() error { return m.enrol(limited, text, fmt.Sprintf("lab-%02d", i), i) })
	}
	if err := joining.Wait(); err != nil {
		return nil, err
	}
	joined := time.Since(began)
	if err := m.awaitReady(ctx, enrolled); err != nil {
		return nil, err
	}
	v := scenario.Values{"joined": joined.Seconds(), "ready": time.Since(began).Seconds()}
	if err := m.enrol(ctx, text, "lab-more", enrolled); err == nil {
		return nil, fmt.Errorf("the token admitted more than %d Macs", enrolled)
	}
	return v, nil
}

// enrol joins one Mac as `agent join` does, and runs its agent.
func (m *macs) enrol(ctx context.Context, text, name string, i int) error {
	token, err := contract.Parse(text)
	if err != nil {
		return err
	}
	state := filepath.Join(m.dir, name)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	if err := join.Run(ctx, join.Options{Token: token, Mac: name, StateDir: state, UserAgent: "bench", Log: logr.Discard()}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	own, err := account.Open(state, logr.Discard())
	if err != nil {
		return err
	}
	return m.run(own.REST(), name, i)
}
