package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

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

// world is one test's operator, with the objects, the Macs and the deployments of the test.
type world struct {
	*cluster
	*scriptedMacs
	*deployments
	clock *jumpClock
	mgr   ctrl.Manager
	stop  func() // stops the operator
}

// newWorld starts an operator and creates a namespace. At the end it deletes everything and
// fails if something is left.
func newWorld(t *testing.T) *world {
	t.Helper()
	cl := newCluster(t)
	w := &world{cluster: cl, scriptedMacs: &scriptedMacs{cluster: cl}, deployments: &deployments{cluster: cl}, clock: &jumpClock{}, stop: func() {}}
	w.startOperator()
	t.Cleanup(w.end)
	return w
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

// waitTicks waits for n ticks of the watchdog.
func (w *world) waitTicks(n int) {
	tick := w.clock.NewTicker(0)
	defer tick.Stop()
	for range n {
		<-tick.C()
	}
}

// deleteLimit bounds a delete in every failure: the 180 s after which a Mac is gone, and a
// minute for everything else.
const deleteLimit = 240 * time.Second

// endsInTime advances the operator's clock until an object is gone.
func (w *world) endsInTime(o client.Object) {
	w.t.Helper()
	for passed := time.Duration(0); ; passed += 20 * time.Second {
		if passed == deleteLimit { // no more time passes; the rest is work
			w.eventually(fmt.Sprintf("%T %s ends in %s", o, o.GetName(), deleteLimit), func() error { return w.gone(o) })
		}
		if w.gone(o) == nil {
			w.t.Logf("%T %s is gone after at most %s of the operator's time", o, o.GetName(), passed)
			return
		}
		w.pass(20 * time.Second)
	}
}

// wantReclaimEvents requires one Event per reclaim on the replica and one on the Mac, which is where
// others may read it, and names no replica.
func (w *world) wantReclaimEvents(reclaims int) {
	w.t.Helper()
	w.eventually("events of reclaims", func() error {
		var ours, others corev1.EventList
		w.must(w.c.List(w.ctx, &ours, client.InNamespace(w.ns)))
		w.must(w.c.List(w.ctx, &others, client.InNamespace("default")))
		onReplica, onMac := 0, 0
		for _, e := range ours.Items {
			if e.Reason != "Reclaimed" || !contains(e.Message, "engine of "+w.ns+"/") {
				continue
			}
			onReplica++
			wantContains(w.t, "event", e.Message, "freed 159744000 bytes (152.3 MiB) on mac-")
			named := "engine of replica " + string(e.InvolvedObject.UID) + ","
			onMac += len(slices.DeleteFunc(slices.Clone(others.Items), func(m corev1.Event) bool {
				return m.Reason != "Reclaimed" || !contains(m.Message, named) || contains(m.Message, w.ns+"/")
			}))
		}
		if onReplica != reclaims || onMac != reclaims {
			return fmt.Errorf("%d events of replicas and %d of Macs, want %d of each", onReplica, onMac, reclaims)
		}
		return nil
	})
}
