package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// operator runs the production controllers until the test ends.
func (p *person) operator() {
	p.t.Helper()
	p.namespace(defaultSystem)
	o := controllers.ManagerOptions(defaultSystem)
	o.Metrics = metricsserver.Options{BindAddress: "0"}
	o.Controller.SkipNameValidation = ptr.To(true)
	mgr, err := ctrl.NewManager(env.Config(), o)
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	p.must(controllers.Setup(ctx, mgr, controllers.Config{Namespace: defaultSystem, Clock: clock.RealClock{}, Metrics: prometheus.NewRegistry()}))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Errorf("operator: %v", err)
		}
	})
	p.t.Cleanup(stop)
}

// joined makes a Mac that a scripted agent plays, and waits until it is ready.
func (p *person) joined(name string, s fleettest.Script) *fleettest.Agent {
	p.t.Helper()
	ctx := context.Background()
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.must(p.c.Create(ctx, mac))
	s.Chip = "M2Ultra"
	s.Footprint = 10 * gib
	agent := fleettest.Start(ctx, p.c, defaultSystem, name, s)
	p.t.Cleanup(func() {
		agent.Stop()
		lost := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLost+`":"true"}}}`))
		p.must(client.IgnoreNotFound(p.c.Patch(ctx, mac, lost))) // its replicas are never released
		p.must(client.IgnoreNotFound(p.c.Delete(ctx, mac)))
		p.eventually(name+" is gone", func() error {
			if err := p.c.Get(ctx, client.ObjectKeyFromObject(mac), mac); client.IgnoreNotFound(err) != nil || err == nil {
				return errors.Join(err, errors.New("it is there"))
			}
			return nil
		})
	})
	p.eventually(name+" is ready", func() error {
		m, err := p.macNow(name)
		if err == nil && !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) {
			err = fmt.Errorf("it is not")
		}
		return err
	})
	return agent
}

// deploys applies a deployment of the small model; it is deleted, and its
// replicas awaited, at the end.
func (p *person) deploys(namespace, name string, replicas int32) *v1alpha1.ModelDeployment {
	p.t.Helper()
	return p.deploysSource(namespace, name, source, replicas)
}

func (p *person) deploysSource(namespace, name, source string, replicas int32) *v1alpha1.ModelDeployment {
	p.t.Helper()
	ctx := context.Background()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Model.Source, d.Spec.Replicas = source, &replicas
	d.Spec.Rollout.DrainSeconds = ptr.To[int32](1)
	p.must(p.c.Create(ctx, d))
	p.t.Cleanup(func() {
		p.must(client.IgnoreNotFound(p.c.Delete(ctx, d)))
		p.eventually("the replicas of "+name+" are gone", func() error {
			var list v1alpha1.ModelReplicaList
			if err := p.c.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelDeployment: name}); err != nil || len(list.Items) > 0 {
				return errors.Join(err, fmt.Errorf("%d are left", len(list.Items)))
			}
			return nil
		})
	})
	return d
}

// ready waits until a deployment has count ready replicas.
func (p *person) ready(d *v1alpha1.ModelDeployment, count int32) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%s has %d ready replicas", d.Name, count), func() error {
		var now v1alpha1.ModelDeployment
		if err := p.c.Get(context.Background(), client.ObjectKeyFromObject(d), &now); err != nil || now.Status.ReadyReplicas != count {
			return errors.Join(err, fmt.Errorf("it has %d", now.Status.ReadyReplicas))
		}
		return nil
	})
}

var (
	// waiting matches the lines that depend on when the command looks.
	waiting   = regexp.MustCompile(`(?m)^(waiting:|Draining) .*\n`)
	replicaOf = regexp.MustCompile(`(two-)[0-9a-f]{8}`)
)

func holding(capacity int64) fleettest.Script {
	return fleettest.Script{Capacity: capacity, Sources: map[string]fleettest.Source{source: {Model: &small}}}
}

func TestCordonAndUncordon(t *testing.T) {
	p := newPerson(t)
	p.now = time.Now()
	p.mac("mac-1", 64*gib, nil)
	for _, step := range []struct {
		command, says string
		cordoned      bool
	}{
		{command: "cordon", says: "Mac mac-1 is cordoned\n", cordoned: true}, {command: "cordon", says: "Mac mac-1 is already cordoned\n", cordoned: true},
		{command: "uncordon", says: "Mac mac-1 is uncordoned\n", cordoned: false}, {command: "uncordon", says: "Mac mac-1 is already uncordoned\n", cordoned: false},
	} {
		out, _ := p.wants(exitOK, step.command, "mac-1")
		mac, err := p.macNow("mac-1")
		p.must(err)
		if out != step.says || mac.Spec.Unschedulable != step.cordoned {
			t.Errorf("%s says %q, unschedulable is %v", step.command, out, mac.Spec.Unschedulable)
		}
	}
	for _, command := range []string{"cordon", "uncordon", "drain"} {
		_, errs := p.wants(exitFailed, command, "ghost")
		contains(t, command, errs, `there is no Mac "ghost"`)
	}
	_, errs := p.wants(exitUsage, "drain", "mac-1", "--timeout", "-1s")
	contains(t, "drain", errs, "--timeout is -1s")
}

// With the production controllers: a Mac is drained, its models stay available
// elsewhere, and the freed memory is reported.
func TestDrainMovesWhatIsOnAMac(t *testing.T) {
	p := newPerson(t)
	p.operator()
	p.joined("mac-1", holding(64*gib))
	p.joined("mac-2", holding(64*gib))
	ns := p.namespace("team-d")
	two := p.deploys(ns, "two", 2)
	p.ready(two, 2)

	out, errs := p.wants(exitOK, "drain", "mac-1", "--timeout", "4m")
	golden(t, "drain", replicaOf.ReplaceAllString(waiting.ReplaceAllString(out, ""), "${1}0a1b2c3d"))
	if errs != "" {
		t.Errorf("standard error: %s", errs)
	}
	var replicas v1alpha1.ModelReplicaList
	p.must(p.c.List(context.Background(), &replicas, client.InNamespace(ns)))
	for _, r := range replicas.Items {
		if r.Spec.NodeName != "mac-2" {
			t.Errorf("%s is on %q", r.Name, r.Spec.NodeName)
		}
	}
	p.ready(two, 2)
	out, _ = p.wants(exitOK, "why", ns+"/two")
	contains(t, "why", out, "is ready: 2/2 replicas ready, stage: serving", "mac-1  cordoned")

	// The other Mac cannot be drained, and nothing changes.
	_, errs = p.wants(exitFailed, "drain", "mac-2", "--timeout", "4m")
	contains(t, "drain", errs, "some replicas cannot be moved", "no other Mac can hold it: 1 Mac: 1 cordoned", "the Mac stays cordoned")
	p.ready(two, 2)
	p.asksWhy(t, ns)
}

// asksWhy asks of a model that cannot be placed, and of one with an unknown source.
func (p *person) asksWhy(t *testing.T, ns string) {
	p.deploys(ns, "third", 1)
	p.eventually("placement has judged it", func() error {
		out, _ := p.wants(exitOK, "why", ns+"/third")
		return said(out, "stage: placement", "NoCandidates", "mac-2  cordoned", "Next step: ")
	})
	lost := p.deploysSource(ns, "lost", "file://nowhere.gguf", 1)
	p.eventually("the source is judged", func() error {
		out, _ := p.wants(exitOK, "why", ns+"/"+lost.Name)
		return said(out, "stage: source", "SourceNotFound", "mac-1  SourceNotFound: no such file")
	})
	text := "apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: new, namespace: " + ns + "}\nspec: {model: {source: '" + source + "'}}\n"
	out, _ := p.wants(exitNoFit, "plan", "-f", file(t, "m.yaml", text))
	contains(t, "plan", out, "it does not fit", "Model: llama Q4_1, from", "mac-1  64.0 GiB  cordoned")
	p.wants(exitOK, "uncordon", "mac-1")
	out, _ = p.wants(exitOK, "plan", "-f", file(t, "m.yaml", text))
	contains(t, "plan", out, "it fits", "placed on mac-1: reserved an estimated 10.6 GiB")
}

// fewestReady watches a deployment; the function that it returns reports the fewest ready
// replicas that there were.
func (p *person) fewestReady(d *v1alpha1.ModelDeployment) (fewest func() int32) {
	p.t.Helper()
	events, err := p.c.Watch(context.Background(), &v1alpha1.ModelDeploymentList{}, client.InNamespace(d.Namespace))
	p.must(err)
	seen := make(chan int32, 1)
	go func() {
		low := int32(1 << 20)
		for e := range events.ResultChan() {
			if now, ok := e.Object.(*v1alpha1.ModelDeployment); ok && now.Name == d.Name {
				low = min(low, now.Status.ReadyReplicas)
			}
		}
		seen <- low
	}()
	return func() int32 {
		events.Stop()
		return <-seen
	}
}

// The only replica of a model serves until its successor does; without memory for one it stays.
func TestTheOnlyReplicaIsReplacedBeforeItGoes(t *testing.T) {
	p := newPerson(t)
	p.operator()
	p.joined("mac-1", holding(64*gib))
	ns := p.namespace("team-e")
	one := p.deploys(ns, "one", 1)
	p.ready(one, 1)
	_, errs := p.wants(exitFailed, "drain", "mac-1")
	contains(t, "drain", errs, "no other Mac can hold it", "kubectl metalfleet uncordon mac-1")
	p.ready(one, 1)
	p.joined("mac-2", holding(64*gib))
	p.eventually("mac-2 confirms the source", func() error {
		mac, err := p.macNow("mac-2")
		if err == nil && !slices.ContainsFunc(mac.Status.Inspections, func(i v1alpha1.InspectionStatus) bool { return i.State == v1alpha1.InspectionResolved }) {
			err = errors.New("it has inspected nothing")
		}
		return err
	})
	fewest := p.fewestReady(one)
	out, _ := p.wants(exitOK, "drain", "mac-1", "--timeout", "4m")
	contains(t, "drain", out, "Mac mac-1 is drained: 1 replica moved, 10.0 GiB freed")
	if n := fewest(); n < 1 {
		t.Errorf("there were %d ready replicas during the drain", n)
	}
	p.ready(one, 1)
}

func TestDrainGivesUpInTime(t *testing.T) {
	p := newPerson(t)
	p.operator()
	busy := holding(64 * gib)
	busy.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.KeepsBusy }
	agent := p.joined("mac-1", busy)
	ns := p.namespace("team-f")
	one := p.deploys(ns, "one", 1)
	p.ready(one, 1)
	p.joined("mac-2", holding(64*gib))
	// The replica never finishes its requests.
	_, errs := p.wants(exitFailed, "drain", "mac-1", "--allow-unserved", "--timeout", "20s")
	contains(t, "drain", errs, "timed out (--timeout)", "is draining: running requests may continue for up to 1 s")
	p.eventually("the Mac ends them", func() error {
		return agent.Edit(context.Background(), func(s *fleettest.Script) { s.Behave = nil })
	})
	out, _ := p.wants(exitOK, "drain", "mac-1", "--timeout", "4m")
	if !strings.HasPrefix(out, "Mac mac-1 is already cordoned\n") {
		t.Errorf("the second run: %s", out)
	}
}
