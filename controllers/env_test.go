package controllers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// system is the operator's namespace, in which its Role is installed.
const system = controllers.DefaultNamespace

// testLimit bounds one test with all its waits.
const testLimit = 8 * time.Minute

// env is one control plane for all tests of this package; they run in sequence.
var env *testenv.Env

func TestMain(m *testing.M) {
	os.Exit(func() int {
		// Assets from elsewhere have no kube-controller-manager; the one test that needs it
		// fails with that reason.
		e, err := testenv.Start(context.Background(), testenv.Options{Controllers: testenv.HasControllers()})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		env = e
		// Once for all tests: goroutines of an operator may outlive it for a moment.
		log := logr.Discard()
		if os.Getenv("OPERATOR_LOG") != "" {
			log = logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil))
		}
		ctrl.SetLogger(log)
		klog.SetLogger(log)
		defer func() {
			if err := e.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		if err := installRBAC(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// installRBAC applies config/rbac, so that the operator of these tests has the same
// permissions as in a cluster.
func installRBAC() error {
	c, err := client.New(env.Config(), client.Options{})
	if err != nil {
		return err
	}
	dir, err := testenv.RBACDir()
	if err != nil {
		return err
	}
	for _, f := range []string{"operator.yaml", "role.yaml", "people.yaml", "agents.yaml", "writes.yaml"} {
		raw, err := os.Open(filepath.Join(dir, f))
		if err != nil {
			return err
		}
		defer raw.Close()
		for r := utilyaml.NewYAMLReader(bufio.NewReader(raw)); ; {
			doc, err := r.Read()
			if err != nil {
				break
			}
			var u unstructured.Unstructured
			if err := utilyaml.Unmarshal(doc, &u.Object); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			if u.Object == nil {
				continue
			}
			if err := c.Create(context.Background(), &u); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
		}
	}
	return awaitPolicies(c)
}

// awaitPolicies waits until the API server enforces the policies of config/rbac. It learns
// of policies by a watch: once the policy that was created last denies a request, the
// others are in effect too.
func awaitPolicies(c client.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience.Most)
	defer cancel()
	const name = "the-last-policy"
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		ResourceNames: []string{name},
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		},
	}}}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "false"}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec.PolicyName = name
	binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	for _, o := range []client.Object{policy, binding} {
		if err := c.Create(ctx, o); err != nil {
			return err
		}
	}
	for {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
		err := c.Create(ctx, probe, client.DryRunAll)
		if apierrors.IsInvalid(err) {
			break
		}
		if err != nil {
			return fmt.Errorf("waiting for the policies: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(c.Delete(ctx, binding), c.Delete(ctx, policy))
}

// jumpClock is the real clock plus jumps; its tickers are fast, so that a jump is noticed
// at once.
type jumpClock struct {
	clock.RealClock
	mu     sync.Mutex
	offset time.Duration // guarded by mu
}

func (c *jumpClock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

func (c *jumpClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

func (c *jumpClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *jumpClock) NewTicker(time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(50 * time.Millisecond)
}

// authoritySpread is how long gateways have to read a new root: much longer than a test
// step takes.
const authoritySpread = 3 * time.Minute

// world is one test's operator, Macs and namespace.
type world struct {
	t     *testing.T
	ctx   context.Context
	c     client.WithWatch
	ns    string
	clock *jumpClock
	macs  []*fleettest.Agent
	stop  func()
	mgr   ctrl.Manager
}

// newWorld starts an operator and creates a namespace. At the end it deletes everything and
// fails if something is left.
func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	c, err := client.NewWithWatch(env.Config(), client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ctx: ctx, c: c, clock: &jumpClock{}, stop: func() {}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	w.must(c.Create(ctx, ns))
	w.ns = ns.Name
	w.startOperator()
	t.Cleanup(w.end)
	return w
}

// asOperator returns a client configuration for the operator's ServiceAccount.
func asOperator() *rest.Config {
	config := env.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":metalfleet-operator",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"}}
	return config
}

// startOperator runs the controllers as the operator's ServiceAccount.
func (w *world) startOperator() {
	w.t.Helper()
	o := controllers.ManagerOptions(system)
	o.Metrics = metricsserver.Options{BindAddress: "0"}
	o.Controller.SkipNameValidation = ptr.To(true)
	mgr, err := ctrl.NewManager(asOperator(), o)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	w.must(controllers.Setup(ctx, mgr, controllers.Config{Namespace: system, Clock: w.clock, CertificateLife: controllers.DefaultCertificateLife,
		AuthoritySpread: authoritySpread, Metrics: prometheus.NewRegistry()}))
	w.mgr = mgr
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("operator: %v", err)
		}
	})
}

// end deletes the objects of the test, with a running operator.
func (w *world) end() {
	w.t.Helper()
	if w.t.Failed() {
		w.dump()
	}
	var list v1alpha1.ModelDeploymentList
	w.must(w.c.List(w.ctx, &list))
	for i := range list.Items {
		w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, &list.Items[i])))
	}
	for _, a := range w.macs {
		w.play(a, func(s *fleettest.Script) { s.Behave, s.Silent = nil, false })
	}
	w.eventually("every replica is gone", func() error {
		var replicas v1alpha1.ModelReplicaList
		if err := w.c.List(w.ctx, &replicas); err != nil || len(replicas.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d replicas are left", len(replicas.Items)))
		}
		return nil
	})
	for _, a := range w.macs {
		w.deleteMac(a)
	}
	w.stop()
	w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})))
}

func (w *world) deleteMac(a *fleettest.Agent) {
	w.t.Helper()
	a.Stop()
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	w.must(client.IgnoreNotFound(w.declareLost(a.Name)))
	w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, mac)))
	w.eventually("Mac "+a.Name+" is gone", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(mac), mac); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
}

// declareLost annotates a Mac that will not come back.
func (w *world) declareLost(mac string) error {
	lost := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationLost+`":"true"}}}`))
	return w.c.Patch(w.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}, lost)
}

// dump logs the objects in the API server after a failed test.
func (w *world) dump() {
	for _, list := range []client.ObjectList{&v1alpha1.ModelDeploymentList{}, &v1alpha1.ModelReplicaList{}, &v1alpha1.MacNodeList{}, &v1alpha1.MacAssignmentList{}, &v1alpha1.NamespaceRulesList{}} {
		if err := w.c.List(w.ctx, list); err != nil {
			w.t.Log(err)
			continue
		}
		_ = meta.EachListItem(list, func(o runtimeObject) error {
			w.t.Logf("%T %s", o, brief(o))
			return nil
		})
	}
}

// assigned returns what is assigned to a Mac, and confirmed; nothing if nothing is.
func (w *world) assigned(mac string) v1alpha1.MacAssignmentSpec {
	w.t.Helper()
	var a v1alpha1.MacAssignment
	w.must(client.IgnoreNotFound(w.c.Get(w.ctx, client.ObjectKey{Name: mac}, &a)))
	if !a.Confirmed() {
		return v1alpha1.MacAssignmentSpec{}
	}
	return a.Spec
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// eventually retries until there is no error.
func (w *world) eventually(what string, complaint func() error) {
	w.t.Helper()
	limit := patience.Of(w.t)
	if err := w.within(limit, complaint); err != nil {
		w.t.Fatalf("%s: not within %s: %v", what, limit, err)
	}
}

func (w *world) within(d time.Duration, complaint func() error) error {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	pause := 10 * time.Millisecond
	for {
		err := complaint()
		if err == nil {
			return nil
		}
		select {
		case <-deadline.C:
			return err
		case <-time.After(pause):
		}
		// A check costs the API server as much as the work that is awaited.
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// mac creates a MacNode with a scripted agent, and waits until it is Ready.
func (w *world) mac(name string, s fleettest.Script) *fleettest.Agent {
	w.t.Helper()
	w.must(w.c.Create(w.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}))
	if s.Chip == "" {
		s.Chip = "M2Ultra"
	}
	if s.Footprint == 0 {
		s.Footprint = 159744000
	}
	a := fleettest.Start(w.ctx, w.c, system, name, s)
	w.macs = append(w.macs, a)
	w.eventually(name+" is Ready", func() error {
		return w.macCondition(name, v1alpha1.ReasonReporting)
	})
	return a
}

// play changes a Mac's script. The operator writes the same MacNode, so that a report may
// get a conflict and is retried.
func (w *world) play(a *fleettest.Agent, change func(*fleettest.Script)) {
	w.t.Helper()
	w.eventually(a.Name+" plays another script", func() error { return a.Edit(w.ctx, change) })
}

func (w *world) macCondition(name, reason string) error {
	var mac v1alpha1.MacNode
	if err := w.c.Get(w.ctx, client.ObjectKey{Name: name}, &mac); err != nil {
		return err
	}
	return wantReason(mac.Status.Conditions, v1alpha1.ConditionReady, reason)
}

func wantReason(conditions []metav1.Condition, kind, reason string) error {
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		return fmt.Errorf("no condition %s", kind)
	}
	if c.Reason != reason {
		return fmt.Errorf("%s=%s, reason %s (%s), want %s", kind, c.Status, c.Reason, c.Message, reason)
	}
	return nil
}

const source = "file://models/small.gguf"

var small = fleettest.Model(source, "small", 98_000_000)

const gib = int64(1) << 30

// holding returns a script with memory and the small model.
func holding(capacity int64) fleettest.Script {
	return fleettest.Script{Capacity: capacity, Sources: map[string]fleettest.Source{source: {Model: &small}}}
}

// deploy applies a ModelDeployment of the small model.
func (w *world) deploy(name string, change func(*v1alpha1.ModelDeploymentSpec)) *v1alpha1.ModelDeployment {
	w.t.Helper()
	d := &v1alpha1.ModelDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec:       v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: source}, Rollout: v1alpha1.RolloutSpec{DrainSeconds: ptr.To[int32](1)}},
	}
	if change != nil {
		change(&d.Spec)
	}
	w.must(w.c.Create(w.ctx, d))
	return d
}

// edit changes a deployment's spec, with retries.
func (w *world) edit(name string, change func(*v1alpha1.ModelDeploymentSpec)) {
	w.t.Helper()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	w.change(d, func() { change(&d.Spec) })
}

// change changes an object that others may write as well: it retries on conflicts.
func (w *world) change(o client.Object, do func()) {
	w.t.Helper()
	key := client.ObjectKeyFromObject(o)
	w.eventually(fmt.Sprintf("change %T %s", o, key), func() error {
		reflect.ValueOf(o).Elem().SetZero() // nothing of an earlier try
		if err := w.c.Get(w.ctx, key, o); err != nil {
			return err
		}
		do()
		return w.c.Update(w.ctx, o)
	})
}

// wake makes the operator look at an object before its own timers do. It ignores conflicts
// and deleted objects.
func (w *world) wake(o client.Object) {
	w.t.Helper()
	woken := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"woken":"yes"}}}`))
	w.must(client.IgnoreNotFound(w.c.Patch(w.ctx, o, woken)))
}

// alone returns the only replica of a list.
func alone(replicas []v1alpha1.ModelReplica) (*v1alpha1.ModelReplica, error) {
	if len(replicas) != 1 {
		return nil, fmt.Errorf("%d replicas, want 1", len(replicas))
	}
	return &replicas[0], nil
}

// looked waits until every Mac has inspected the small model's source. The first Mac with
// weights may get a replica; after this there is no first one.
func (w *world) looked() {
	w.t.Helper()
	scout := w.deploy("scout", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](0) })
	for _, a := range w.macs {
		w.eventually(a.Name+" has looked at "+source, func() error {
			var mac v1alpha1.MacNode
			if err := w.c.Get(w.ctx, client.ObjectKey{Name: a.Name}, &mac); err != nil {
				return err
			}
			for _, i := range mac.Status.Inspections {
				if i.ID == fleet.InspectionID(scout) && i.State == v1alpha1.InspectionResolved {
					return nil
				}
			}
			return fmt.Errorf("inspections %+v", mac.Status.Inspections)
		})
	}
}

func (w *world) get(name string) *v1alpha1.ModelDeployment {
	w.t.Helper()
	var d v1alpha1.ModelDeployment
	w.must(w.c.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: name}, &d))
	return &d
}

// deployment waits until a condition of a deployment has a reason.
func (w *world) deployment(name, kind, reason string) *v1alpha1.ModelDeployment {
	w.t.Helper()
	var d *v1alpha1.ModelDeployment
	w.eventually(fmt.Sprintf("%s has %s with reason %s", name, kind, reason), func() error {
		d = w.get(name)
		if d.Status.ObservedGeneration != d.Generation {
			return errors.New("the status is of another generation")
		}
		return wantReason(d.Status.Conditions, kind, reason)
	})
	return d
}

// replicas of a deployment, including terminating ones.
func (w *world) replicas(deployment string) []v1alpha1.ModelReplica {
	w.t.Helper()
	var list v1alpha1.ModelReplicaList
	w.must(w.c.List(w.ctx, &list, client.InNamespace(w.ns), client.MatchingLabels{v1alpha1.LabelDeployment: deployment}))
	return list.Items
}

func message(conditions []metav1.Condition, kind string) string {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

// pass advances the operator's clock in steps during which every live agent renews its
// Lease.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for ; d > 0; d -= 20 * time.Second {
		w.clock.jump(min(d, 20*time.Second))
		for range 2 {
			for _, a := range w.macs {
				a.Renew(w.ctx)
			}
			w.waitTicks(1)
		}
	}
}

func wantContains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s: %q does not contain %q", what, got, p)
		}
	}
}
