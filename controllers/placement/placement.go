// Package placement binds replicas to Macs. One reconciler handles all unplaced replicas
// together, because reservations are cumulative: the highest priority first, then the
// namespaces in turns. A pass that takes long ends, and another continues (round).
//
// It owns spec.nodeName of a replica (bound once), spec.prefetchNodeName until then, its
// condition Placed, the residency policy of a bound replica, and the deletion of
// replicas that make room for one of a higher priority, or for one of a new revision that may swap. It decides nothing: package plan
// does, on a snapshot, by the administrator's rules (plan.Rules); a decision is assumed in
// the snapshot first, and dropped with it at the end of the pass if it could not be
// persisted. It never moves a bound replica: its deployment creates another.
//
// Start reading at Reconciler.Reconcile.
package placement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=namespacerules,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create

// Reconciler places all unplaced replicas in one pass.
type Reconciler struct {
	Client client.Client
	// RequireRules has nothing new placed while there are no NamespaceRules.
	RequireRules bool
	Clock        clock.PassiveClock

	round round
	// repeats bound the reports on replicas that still wait, by repeatOf.
	repeats *notice.Limits
	// leftSince is when passes began to leave status writes to the next one; zero: the last one did not.
	leftSince time.Time
}

// pass is the one request of this reconciler: the whole fleet.
var pass = reconcile.Request{NamespacedName: client.ObjectKey{Name: "fleet"}}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	always := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		r.round.changed.Store(true)
		return []reconcile.Request{pass}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("placement").WithOptions(o).
		Watches(&v1alpha1.ModelReplica{}, always, builder.WithPredicates(replicaMatters())).
		Watches(&v1alpha1.MacNode{}, always, builder.WithPredicates(macMatters())).
		Watches(&v1alpha1.ModelDeployment{}, always, builder.WithPredicates(residencyChanged())).
		Watches(&v1alpha1.NamespaceRules{}, always, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// replicaMatters passes what can change a plan: an unplaced replica that was created or
// changed, and freed room.
func replicaMatters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, now := e.ObjectOld.(*v1alpha1.ModelReplica), e.ObjectNew.(*v1alpha1.ModelReplica)
			return old.Generation != now.Generation || fleet.Released(old) != fleet.Released(now) ||
				now.DeletionTimestamp.IsZero() && (now.Spec.NodeName == "" || !placedTrue(now))
		},
	}
}

// macMatters passes what the plan reads of a Mac.
func macMatters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, now := e.ObjectOld.(*v1alpha1.MacNode), e.ObjectNew.(*v1alpha1.MacNode)
			return !status.Equal(view(old), view(now)) || len(fleet.ChangedReports(old, now)) > 0
		},
	}
}

// view returns what the plan reads of a Mac besides its reports on sources, without figures that
// change while a Mac idles.
func view(m *v1alpha1.MacNode) any {
	return struct {
		State         fleet.MacState
		Unreachable   bool
		Accepting     bool
		Skewed        bool
		Stranded      bool
		Labels        map[string]string
		Taints        any
		Unschedulable bool
		Capacity      int64
		DiskKnown     bool
		Chip          string
		Weights       []v1alpha1.StoredWeights
		Pinned        []string
	}{fleet.StateOf(m), fleet.Unreachable(m), !meta.IsStatusConditionFalse(m.Status.Conditions, v1alpha1.ConditionAccepting), plan.Skewed(m), plan.Stranded(m), m.Labels, m.Spec.Taints,
		m.Spec.Unschedulable || fleet.Leaving(m), m.Status.Memory.CapacityBytes, m.Status.Disk.FreeBytes > 0, m.Status.Chip, m.Status.Weights, m.Spec.PinnedWeights}
}

func placedTrue(r *v1alpha1.ModelReplica) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionPlaced)
}

// Reconcile makes one pass over all replicas.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	r.round.begin()
	if r.repeats == nil {
		r.repeats = &notice.Limits{Burst: maxReports, Every: repeatEvery}
	}
	snapshot, replicas, err := r.read(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	writes := newWrites()
	writes.now = r.Clock.Now()
	if err := r.reserve(ctx, snapshot, writes, replicas); err != nil {
		return reconcile.Result{}, err
	}
	for _, replica := range open(replicas) {
		if r.round.skips(replica) {
			continue
		}
		began := r.Clock.Now()
		d := plan.Decision{Mac: replica.Spec.NodeName, Reason: v1alpha1.ReasonPlaced, Message: "placed on " + replica.Spec.NodeName}
		switch {
		case fleet.Prefetches(replica):
			d = snapshot.PickPrefetch(replica)
		case replica.Spec.NodeName == "":
			d = snapshot.Pick(replica)
		}
		errs = append(errs, r.carryOut(ctx, snapshot, writes, replica, d))
		r.round.note(replica, d, r.Clock.Since(began))
	}
	writes.due = r.round.cut() || !r.leftSince.IsZero() && r.Clock.Since(r.leftSince) >= sayAfter
	err = errors.Join(append(errs, writes.wait())...)
	switch {
	case !writes.leaves():
		r.leftSince = time.Time{}
	case r.leftSince.IsZero():
		r.leftSince = r.Clock.Now()
	}
	again := r.round.end(err != nil)
	if err != nil {
		return reconcile.Result{}, err
	}
	if again || writes.more {
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil // the rest of the replicas
	}
	wait := r.round.retry
	if writes.bound && (wait == 0 || wait > sayAfter) {
		wait = sayAfter // a binding triggers the next pass by its watch; this is for one that conflicted
	}
	// What no watch reports: the end of the time for which a Mac is avoided, or waited for,
	// and free space on a disk.
	return reconcile.Result{RequeueAfter: wait}, nil
}

// read takes a snapshot of the fleet. Its objects belong to the cache and must not be
// changed: copying thousands would cost more than the decisions. It waits for no writes of
// MacNodes in flight: none is its own, and a Mac can make each take most of a second.
func (r *Reconciler) read(ctx context.Context) (*plan.Snapshot, []v1alpha1.ModelReplica, error) {
	var macs v1alpha1.MacNodeList
	var replicas v1alpha1.ModelReplicaList
	if err := errors.Join(r.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency), r.Client.List(ctx, &replicas, client.UnsafeDisableDeepCopy)); err != nil {
		return nil, nil, fmt.Errorf("read the fleet: %w", err)
	}
	rules := &v1alpha1.NamespaceRules{}
	switch err := r.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.NamespaceRulesName}, rules); {
	case apierrors.IsNotFound(err):
		rules = nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the NamespaceRules: %w", err)
	}
	snapshot := plan.NewSnapshot(macs.Items, replicas.Items, r.Clock.Now()).Under(plan.NewRules(rules, r.RequireRules))
	return snapshot.Asking(func(replica *v1alpha1.ModelReplica) string { return r.inspection(ctx, replica) }), replicas.Items, nil
}

// inspection returns the id of the inspection that a replica's deployment asks for; empty if
// the deployment is gone.
func (r *Reconciler) inspection(ctx context.Context, replica *v1alpha1.ModelReplica) string {
	var d v1alpha1.ModelDeployment // of the cache: read only
	key := client.ObjectKey{Namespace: replica.Namespace, Name: replica.Spec.DeploymentRef.Name}
	if err := r.Client.Get(ctx, key, &d, client.UnsafeDisableDeepCopy); err != nil || string(d.UID) != replica.Spec.DeploymentRef.UID {
		return ""
	}
	return fleet.InspectionID(&d)
}

// open returns the replicas that need a decision: a Mac, or the condition that they have
// one, in the order of plan.Sort. Those that only keep weights come last.
func open(replicas []v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	var out []*v1alpha1.ModelReplica
	for i := range replicas {
		if r := &replicas[i]; r.DeletionTimestamp.IsZero() && (r.Spec.NodeName == "" || !placedTrue(r)) {
			out = append(out, r)
		}
	}
	plan.Sort(out)
	last := func(r *v1alpha1.ModelReplica) int {
		if fleet.Prefetches(r) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out, func(a, b *v1alpha1.ModelReplica) int { return last(a) - last(b) })
	return out
}

// writesAtOnce is how many decisions of a pass are persisted concurrently: a hundred in
// sequence would take a hundred round trips.
const writesAtOnce = 8

// sayAfter is the maximum delay of the pass after one that only bound, and of the status writes
// while each pass binds.
const sayAfter = time.Second

// writes are the writes of one pass. Spec writes start at once. Status writes are deferred,
// and a pass that binds leaves them to the next one: Macs act on spec, and nothing waits
// for status. A spec write that fails delays the status of its own replica alone: it may fail
// for ever. They do not touch the snapshot.
type writes struct {
	now          time.Time // of the pass
	group        errgroup.Group
	statusWrites []statusWrite
	// due: they are written also if a replica was bound, because the next pass does not decide
	// for the same replicas again, or earlier ones left them already.
	due bool
	// more: another pass writes to the rest of the replicas whose residency changes.
	more bool

	mu     sync.Mutex // guards the rest
	bound  bool       // a replica was bound
	failed map[types.UID]bool
	errs   []error
}

// statusWrite is the deferred write for a replica.
type statusWrite struct {
	replica types.UID
	write   func() error
}

func newWrites() *writes {
	w := &writes{failed: map[types.UID]bool{}}
	w.group.SetLimit(writesAtOnce)
	return w
}

// specWrite starts a write for a replica now.
func (w *writes) specWrite(replica types.UID, write func() error) {
	w.group.Go(func() error {
		if err := client.IgnoreNotFound(write()); err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failed[replica] = true
			w.errs = append(w.errs, err)
		}
		return nil
	})
}

// bind starts a write that binds a replica.
func (w *writes) bind(replica types.UID, write func() error) {
	w.specWrite(replica, func() error {
		err := write()
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.bound = true
		}
		return err
	})
}

// leaves reports whether status writes are left to the next pass.
func (w *writes) leaves() bool { return w.bound && !w.due }

// deferStatus adds a write that follows all spec writes, unless the pass leaves them.
func (w *writes) deferStatus(replica types.UID, write func() error) {
	w.statusWrites = append(w.statusWrites, statusWrite{replica, write})
}

// wait completes the writes of the pass.
func (w *writes) wait() error {
	_ = w.group.Wait() // all errors are collected
	if !w.leaves() {
		failed := maps.Clone(w.failed)
		for _, s := range w.statusWrites {
			if !failed[s.replica] {
				w.specWrite(s.replica, s.write)
			}
		}
		_ = w.group.Wait()
	}
	return errors.Join(w.errs...)
}

// carryOut assumes the decision and persists it. A failed write is decided again in the
// next pass, on another snapshot. Victims are deleted before the next decision, which must
// not count on them if that fails.
func (r *Reconciler) carryOut(ctx context.Context, s *plan.Snapshot, w *writes, replica *v1alpha1.ModelReplica, d plan.Decision) error {
	condition := status.False(v1alpha1.ConditionPlaced, d.Reason, d.Message)
	binds := d.Mac != "" && replica.Spec.NodeName == ""
	switch {
	case binds:
		s.Assume(replica, d.Mac)
	case d.Mac != "":
		condition = status.True(v1alpha1.ConditionPlaced, d.Reason, d.Message)
	case d.Awaits != "":
		undo := s.Claim(replica, d)
		if err := r.preempt(ctx, replica, d); err != nil {
			undo()
			return err
		}
	}
	ahead := d.FetchesOn(replica)
	if ahead != replica.Spec.PrefetchNodeName { // else it is counted
		s.FetchAhead(replica, ahead)
	}
	switch {
	case binds:
		w.bind(replica.UID, func() error { return r.bind(ctx, replica, d.Mac) })
	case d.Mac == "" && ahead != replica.Spec.PrefetchNodeName:
		w.specWrite(replica.UID, func() error { return r.prefetch(ctx, replica, ahead) })
	}
	switch _, differs := merged(replica, condition, w.now); {
	case binds || !differs:
	case r.delays(repeatOf(replica, condition), w.now):
		r.round.lookAgain(repeatAgain)
	default:
		r.round.reports++
		w.deferStatus(replica.UID, func() error { return r.report(ctx, replica, condition) })
	}
	return nil
}

// repeatEvery is how often another reason is written why a replica of a namespace waits, after
// maxReports at once: the figures in the reasons of thousands change with one other replica. The rest
// is looked at after repeatAgain.
const (
	repeatEvery = 50 * time.Millisecond
	repeatAgain = 10 * time.Second
)

// delays reports whether such reports have been written too often to write another one now.
func (r *Reconciler) delays(repeat string, now time.Time) bool {
	return repeat != "" && !r.repeats.Allow(repeat, now)
}

// repeatOf returns of what a report is one, if it only gives another reason, or other figures, for a
// replica that is known to wait for a Mac; empty if it is another report. Reasons, which a rollout
// follows, do not wait for figures.
func repeatOf(replica *v1alpha1.ModelReplica, c status.Condition) string {
	before := meta.FindStatusCondition(replica.Status.Conditions, v1alpha1.ConditionPlaced)
	switch {
	case before == nil || before.Status != metav1.ConditionFalse || c.Status != metav1.ConditionFalse:
		return ""
	case before.Reason != c.Reason:
		return replica.Namespace + "/" + c.Reason
	}
	return replica.Namespace
}

// preempt records the reason at the victims, and deletes them: they drain like any replica,
// and their deployments create others, which wait for room.
func (r *Reconciler) preempt(ctx context.Context, replica *v1alpha1.ModelReplica, d plan.Decision) error {
	for _, v := range d.Victims {
		victim := v.DeepCopy()
		why := fmt.Sprintf("its room on %s is needed for a replica with a higher priority (%d; this replica has %d)", d.Awaits, replica.Spec.Priority.Value, v.Spec.Priority.Value)
		reason := v1alpha1.ReasonPreempted
		if v.Spec.DeploymentRef.UID == replica.Spec.DeploymentRef.UID {
			reason, why = v1alpha1.ReasonSwapping, fmt.Sprintf("its room on %s is needed for revision %s", d.Awaits, replica.Spec.Revision)
		}
		err := r.report(ctx, victim, status.False(v1alpha1.ConditionPlaced, reason, why))
		if err == nil {
			err = r.Client.Delete(ctx, victim, client.Preconditions{UID: &victim.UID})
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("preempt %s: %w", client.ObjectKeyFromObject(victim), err)
		}
		notice.PostAll(ctx, r.Client, r.Clock.Now(), notice.Notice{About: notice.Of("ModelReplica", victim), ID: d.Awaits, Reason: reason, Message: why,
			Warning: reason == v1alpha1.ReasonPreempted})
		ctrl.LoggerFrom(ctx).Info("Replica preempted", "ModelReplica", client.ObjectKeyFromObject(victim), "MacNode", d.Awaits,
			"for", client.ObjectKeyFromObject(replica))
	}
	return nil
}

// bind writes nodeName. The write is locked, so that a replica which is being deleted and
// released at this moment is not bound.
func (r *Reconciler) bind(ctx context.Context, replica *v1alpha1.ModelReplica, mac string) error {
	if err := status.Apply(ctx, r.Client, v1alpha1.ManagerPlacement,
		configure(replica).WithResourceVersion(replica.ResourceVersion).WithSpec(ac.ModelReplicaSpec().WithNodeName(mac))); err != nil {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Replica placed", "ModelReplica", client.ObjectKeyFromObject(replica), "MacNode", mac)
	return nil
}

// prefetch writes which Mac prefetches the weights, or that none does. A binding removes
// it.
func (r *Reconciler) prefetch(ctx context.Context, replica *v1alpha1.ModelReplica, mac string) error {
	spec := ac.ModelReplicaSpec()
	if mac != "" {
		spec.WithPrefetchNodeName(mac)
	}
	return status.Apply(ctx, r.Client, v1alpha1.ManagerPlacement, configure(replica).WithSpec(spec))
}

// configure returns an apply configuration for this very replica, by UID.
func configure(replica *v1alpha1.ModelReplica) *ac.ModelReplicaApplyConfiguration {
	return ac.ModelReplica(replica.Name, replica.Namespace).WithUID(replica.UID)
}

// merged returns the condition Placed of a replica as it is to be, and whether it is another one.
func merged(replica *v1alpha1.ModelReplica, c status.Condition, now time.Time) (after []metav1.Condition, differs bool) {
	before := status.Pick(replica.Status.Conditions, v1alpha1.ConditionPlaced)
	after = status.Merge(before, replica.Generation, now, c)
	return after, !status.Equal(before, after)
}

func (r *Reconciler) report(ctx context.Context, replica *v1alpha1.ModelReplica, c status.Condition) error {
	after, differs := merged(replica, c, r.Clock.Now())
	if !differs {
		return nil
	}
	if err := status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerPlacement,
		configure(replica).WithStatus(ac.ModelReplicaStatus().WithConditions(status.Conditions(after)...))); err != nil {
		return err
	}
	if c.Status == metav1.ConditionTrue { // it was not, or there was nothing to write
		notice.PostAll(ctx, r.Client, r.Clock.Now(), notice.Notice{About: notice.Of("ModelReplica", replica), ID: replica.Spec.NodeName, Reason: c.Reason, Message: c.Message})
	}
	return nil
}
