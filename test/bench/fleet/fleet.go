// Package fleet measures what an idle fleet of a thousand Macs costs the API
// server and the operator, and how long a hundred replicas take to be placed.
//
// It owns the Macs, which are agents without engines: each is an agent's
// connection to the API (heartbeat, orders, reports) with its own rights, and
// figures that change as those of an idle Mac do. Writes are counted by the API
// server. No engine is started.
//
// Start reading at Subject; macs.go has the agents.
package fleet

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	system "metalfleet.dev/metalfleet/test/fleet"
)

// Subject is `bench fleet`.
func Subject() scenario.Subject {
	macs, window := 1000, 40*time.Second
	return scenario.Subject{
		Name: "fleet", Help: "1,000 agents without engines: writes while idle, memory of the operator, placement",
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&macs, "macs", macs, "`number` of Macs")
			f.DurationVar(&window, "window", window, "how long writes are counted in a round")
		},
		Scenarios: []scenario.Scenario{{
			Name: "idle", Title: "What an idle fleet costs the API server and the operator", Rounds: 3,
			Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error {
				return run(ctx, e, r, macs, window)
			},
			About: `A real API server and etcd, the operator as a process of its own, and 1,000 agents without engines (-macs changes that): each renews
its Lease, follows its MacNode and reports through the agent's own packages, with its own token and connection. Writes are the API server's
count of all requests that change something while nothing happens. Then 20 deployments of 5 replicas are created at once; the time ends when
every replica has a Mac. Everything shares this machine.`,
		}, {
			Name: "enrolment", Title: "Many Macs join with one token", Rounds: 1, Run: enrolment,
			About: `A real API server and etcd, the operator as a process of its own, and 50 Macs that run the agent's join and registration in this process,
all at once, with one enrolment token for 50. Each has its own key, state folder and connection. One more is refused.`,
		}},
	}
}

// deployments that are placed at once, and replicas of each.
const deployments, each = 20, 5

// patience bounds waits, far beyond the bounds of figures.
const patience = 3 * time.Minute

var figures = []scenario.Figure{
	{Name: "writes per idle Mac and 10 s", Of: "fleet/writes", Bound: report.AtMost(1.2).Every()},
	{Name: "renewals of Leases among them", Of: "fleet/leases"},
	{Name: fmt.Sprintf("%d replicas of %d deployments, from the first create until each has a Mac", deployments*each, deployments), Unit: "s", Of: "fleet/placed", Bound: report.Under(5)},
	{Name: "peak memory of the operator", Unit: "MB", Of: "fleet/peak", Scale: 1e-6, Bound: report.Under(500).Every()},
}

func run(ctx context.Context, e *scenario.Env, r *report.Report, n int, window time.Duration) error {
	models, err := e.Scratch()
	if err != nil {
		return err
	}
	o := system.Options{Root: ".", ModelRoot: models, Say: func(s string) { fmt.Fprintln(e.Log, s) }}
	return system.With(ctx, o, e.Logs, func(ctx context.Context, f *system.Fleet) error {
		macs, err := startMacs(ctx, f, n)
		defer macs.stop()
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Log, "%d Macs run\n", n)
		round := 0
		return e.Measure(ctx, r, 0, figures, scenario.One("fleet", func(ctx context.Context) (scenario.Values, error) {
			round++
			v, err := measure(ctx, f, round, n, window)
			return v, errors.Join(err, macs.failure())
		}))
	})
}

// measure counts the writes of idle Macs, and times a placement.
func measure(ctx context.Context, f *system.Fleet, round, macs int, window time.Duration) (scenario.Values, error) {
	v, err := idle(ctx, f, macs, window)
	if err != nil {
		return nil, err
	}
	took, err := place(ctx, f, round)
	if err != nil {
		return nil, err
	}
	peak, err := proc.Peak(f.Operator.PID())
	if err != nil {
		return nil, err
	}
	v["placed"], v["peak"] = took.Seconds(), float64(peak)
	for n := range deployments {
		if err := f.Undeploy(ctx, deploymentName(round, n)); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// idle counts writes per Mac and 10 seconds.
func idle(ctx context.Context, f *system.Fleet, macs int, window time.Duration) (scenario.Values, error) {
	before, err := countWrites(ctx, f)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	timer := time.NewTimer(window)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	after, err := countWrites(ctx, f)
	if err != nil {
		return nil, err
	}
	if after.leases <= before.leases {
		return nil, errors.New("no Lease was renewed: the Macs do not run")
	}
	per := float64(macs) * time.Since(began).Seconds() / 10
	return scenario.Values{"writes": (after.all - before.all) / per, "leases": (after.leases - before.leases) / per}, nil
}

// writes that an API server was asked for since it started.
type writes struct{ all, leases float64 }

func countWrites(ctx context.Context, f *system.Fleet) (writes, error) {
	clients, err := kubernetes.NewForConfig(f.Env.Config())
	if err != nil {
		return writes{}, err
	}
	b, err := clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return writes{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	return parseWrites(b)
}

// parseWrites adds up the requests that change something.
func parseWrites(metrics []byte) (w writes, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics))
	if err != nil {
		return w, fmt.Errorf("metrics of the API server: %w", err)
	}
	family := families["apiserver_request_total"]
	if family == nil {
		return w, errors.New("the API server counts no requests")
	}
	for _, m := range family.GetMetric() {
		label := map[string]string{}
		for _, l := range m.GetLabel() {
			label[l.GetName()] = l.GetValue()
		}
		switch label["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
			w.all += m.GetCounter().GetValue()
			if label["resource"] == "leases" {
				w.leases += m.GetCounter().GetValue()
			}
		}
	}
	return w, nil
}

func deploymentName(round, n int) string { return fmt.Sprintf("model-%d-%02d", round, n) }

// place creates the deployments of a round and waits until each replica has a
// Mac. It watches, because listing again and again would take the API server's
// time from those who place.
func place(ctx context.Context, f *system.Fleet, round int) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	events, err := f.Client.Watch(ctx, &v1alpha1.ModelReplicaList{}, client.InNamespace("default"))
	if err != nil {
		return 0, fmt.Errorf("watch replicas: %w", err)
	}
	defer events.Stop()
	began := time.Now()
	for n := range deployments {
		name := deploymentName(round, n)
		md := &v1alpha1.ModelDeployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1alpha1.ModelDeploymentSpec{
				Model: v1alpha1.ModelSource{Source: "hf://bench/" + name}, Replicas: ptr.To[int32](each), Context: v1alpha1.ContextSpec{MaxTokens: 4096, MaxConcurrentRequests: 4},
			},
		}
		if err := f.Client.Create(ctx, md); err != nil {
			return 0, fmt.Errorf("create %s: %w", name, err)
		}
	}
	err = awaitPlaced(ctx, events, deployments*each)
	return time.Since(began), err
}

func awaitPlaced(ctx context.Context, events watch.Interface, wanted int) error {
	bound := map[string]bool{}
	for len(bound) < wanted {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d replicas have a Mac: %w", len(bound), wanted, context.Cause(ctx))
		case e, open := <-events.ResultChan():
			replica, ok := e.Object.(*v1alpha1.ModelReplica)
			switch {
			case !open || !ok:
				return fmt.Errorf("the watch of replicas ended: %v", e)
			case e.Type == watch.Deleted || !replica.DeletionTimestamp.IsZero():
				delete(bound, replica.Name)
			case replica.Spec.NodeName != "":
				bound[replica.Name] = true
			}
		}
	}
	return nil
}
