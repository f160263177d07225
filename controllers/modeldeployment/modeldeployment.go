// Package modeldeployment turns a ModelDeployment into replicas and reports its progress.
//
// It owns revisions, the creation and deletion of replicas, the deployment's
// finalizer and its whole status. It refuses to create anything in a
// terminating namespace, to replace an engine because of a source that cannot
// be read just now, and to let a deployment go before each of its replicas is
// released and what it freed is counted, once. Decisions are pure: accept
// (source and names), assess (the rollout), plan (replicas), deriveStatus, which
// sets the conditions that tools wait for in standing.go.
//
// Start reading at Reconciler.Reconcile.
package modeldeployment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/hubsecret"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments/finalizers,verbs=update
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes;modelprofiles;namespacerules,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create
// +kubebuilder:rbac:groups=scheduling.k8s.io,resources=priorityclasses,verbs=get;list;watch

// Reconciler maintains the replicas of one deployment.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock
	// Secrets reads the credentials that deployments name.
	Secrets *hubsecret.Reader
	// Inspectors decides which Macs are asked for a source. Nil keeps nothing between passes.
	Inspectors *fleet.Inspectors
	// URL and PublicURL are the base URLs of the gateways in the cluster and outside of it;
	// empty: there is none.
	URL, PublicURL string
}

// Reconcile reads, acts, and derives the status last, also when acting failed.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	orphans := r.deleteOrphans(ctx, req)
	s, err := r.read(ctx, req)
	if err != nil || s == nil {
		// A failed read must not be mistaken for a missing object.
		return reconcile.Result{}, errors.Join(err, orphans)
	}
	s.failure = r.act(ctx, s)
	err = errors.Join(s.failure, orphans, r.report(ctx, s))
	if s.failure == nil { // also if the status cannot be written: a tenant may see to that
		err = errors.Join(err, r.finish(ctx, s))
	}
	return reconcile.Result{RequeueAfter: s.again()}, err
}

// act performs what follows from the scope.
func (r *Reconciler) act(ctx context.Context, s *scope) error {
	if !s.deployment.DeletionTimestamp.IsZero() {
		return r.remove(ctx, s, append(all(s.replicas), all(s.prefetchers)...))
	}
	if s.ending {
		// The namespace controller deletes everything; nothing is created any more.
		return nil
	}
	if err := r.addFinalizer(ctx, s); err != nil {
		return err
	}
	if err := r.judge(ctx, s); err != nil {
		return err
	}
	if s.verdict.engine != nil {
		current, err := r.ensureRevision(ctx, s, *s.verdict.engine)
		if err != nil {
			return errors.Join(err, r.pruneWithout(ctx, s, err))
		}
		s.current = &current
	} else if n := len(s.revisions); n > 0 {
		// The previously accepted revision stays current until its successor is accepted.
		s.current = &s.revisions[n-1]
	}
	if s.current == nil {
		return nil
	}
	s.rollout, s.overdue = assess(s)
	// Replicas that serve come first: both kinds share the room for those that wait for a Mac.
	err := errors.Join(r.carryOut(ctx, s, plan(s.desired(), s.replicas, s.now)), r.prefetch(ctx, s))
	// Also after a failure: each edit of a deployment that cannot have replicas makes a revision.
	return errors.Join(err, r.pruneRevisions(ctx, s))
}

func (r *Reconciler) addFinalizer(ctx context.Context, s *scope) error {
	before := s.deployment.DeepCopy()
	if !controllerutil.AddFinalizer(s.deployment, v1alpha1.FinalizerReplicas) {
		return nil
	}
	if err := r.Client.Patch(ctx, s.deployment, lockedMerge(before), client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("add finalizer: %w", err)
	}
	s.deployment.Annotations = before.Annotations // a tenant's are not read
	return nil
}

func lockedMerge(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// carryOut creates, removes and updates replicas. It removes surplus
// and failed ones also when a creation fails: a quota may count them.
func (r *Reconciler) carryOut(ctx context.Context, s *scope, c changes) error {
	followed := r.follow(ctx, s, c.swap)
	if followed != nil && !full(followed) {
		return followed
	}
	missing, err := r.withinNamespace(ctx, s, c.create, waiting(s.replicas))
	return errors.Join(followed, err, r.create(ctx, s, missing), r.remove(ctx, s, c.remove))
}

func (r *Reconciler) create(ctx context.Context, s *scope, missing []replicaToCreate) error {
	for _, b := range missing {
		replica, err := newReplica(s, b)
		if err != nil {
			return err
		}
		if err := r.createReplica(ctx, replica); err != nil {
			return err
		}
		s.replicas = append(s.replicas, *replica)
	}
	return nil
}

// createReplica creates a replica. A namespace that terminates gets none, which is no error.
func (r *Reconciler) createReplica(ctx context.Context, replica *v1alpha1.ModelReplica) error {
	err := r.Client.Create(ctx, replica, client.FieldOwner(v1alpha1.ManagerOperator))
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		return &createError{name: replica.Name, err: err}
	}
	ctrl.LoggerFrom(ctx).Info("Replica created", "ModelReplica", client.ObjectKeyFromObject(replica), "revision", replica.Spec.Revision)
	return nil
}

// remove deletes replicas; their finalizer keeps them until they are released.
func (r *Reconciler) remove(ctx context.Context, s *scope, replicas []*v1alpha1.ModelReplica) error {
	for _, replica := range replicas {
		if !replica.DeletionTimestamp.IsZero() {
			continue
		}
		if !s.mayWrite() {
			return nil
		}
		if err := r.Client.Delete(ctx, replica, client.Preconditions{UID: &replica.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete replica %s: %w", replica.Name, err)
		}
		ctrl.LoggerFrom(ctx).Info("Replica deleted", "ModelReplica", client.ObjectKeyFromObject(replica), "MacNode", replica.Spec.NodeName)
		s.markDeleted(replica.UID)
	}
	return nil
}

// follow updates the fields that may change during the life of a replica, and the
// permission to swap. If the namespace has no room for larger fields, the others are updated.
func (r *Reconciler) follow(ctx context.Context, s *scope, swap types.UID) error {
	spec := s.effective()
	oversized := s.oversized() != nil
	drain := drainSeconds(s.deployment)
	var noRoom error
	for i := range s.replicas {
		replica := &s.replicas[i]
		if !replica.DeletionTimestamp.IsZero() {
			continue
		}
		next, inherits, err := r.inherit(ctx, s, replica, oversized)
		if err != nil && !full(err) {
			return err
		}
		noRoom = cmp.Or(noRoom, err)
		residency, priority := fleet.Residency(s.deployment.Spec.Residency), s.priority(replica.Spec.Priority)
		if replica.Spec.NodeName != "" && replica.Spec.Residency.OnDemand() != residency.OnDemand() {
			residency = replica.Spec.Residency // placement changes it, if the rules and the Mac allow that
		}
		cache := fleet.Cache(spec.PrefixCache, replica.Spec.PrefixCache)
		swaps := replica.Spec.Swap // fixed once there is a Mac
		if replica.Spec.NodeName == "" {
			swaps = replica.UID == swap
		}
		if !inherits && replica.Spec.DrainSeconds == drain && replica.Spec.Residency == residency && replica.Spec.PrefixCache == cache &&
			replica.Spec.Priority == priority && replica.Spec.Swap == swaps {
			continue
		}
		if !s.mayWrite() {
			return noRoom
		}
		before := replica.DeepCopy()
		before.DeepCopyInto(replica) // the response is decoded into it
		replica.Labels, replica.Annotations, replica.Spec.Placement = next.Labels, next.Annotations, next.Spec.Placement
		replica.Spec.DrainSeconds, replica.Spec.Residency, replica.Spec.Priority = drain, residency, priority
		replica.Spec.PrefixCache, replica.Spec.Swap = cache, swaps
		patch := client.MergeFrom(before)
		if before.Spec.Residency.Policy != residency.Policy { // it must not be bound meanwhile
			patch = lockedMerge(before)
		}
		if err := r.Client.Patch(ctx, replica, patch, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
			return fmt.Errorf("update replica %s: %w", replica.Name, err)
		}
	}
	return noRoom
}

// report writes the status if it changed. The write is locked: the count of freed bytes is
// only correct if no one else wrote it since it was read.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	next, before := deriveStatus(s), s.deployment.Status
	next.URL, next.PublicURL = r.URL, r.PublicURL
	before.SecretUID = s.secretBefore
	before.Autoscaling = nil // written by another controller, under its own field manager
	if status.Equal(before, next) {
		return nil
	}
	posts := notices(s, next)
	applied, err := status.Convert[ac.ModelDeploymentStatusApplyConfiguration](next)
	if err != nil {
		return err
	}
	d := s.deployment
	o := ac.ModelDeployment(d.Name, d.Namespace).WithUID(d.UID).WithResourceVersion(d.ResourceVersion).WithStatus(applied)
	if err := status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerOperator, o); err != nil {
		return err
	}
	d.Status.FreedBytesTotal = next.FreedBytesTotal
	notice.PostAll(ctx, r.Client, s.now, posts...)
	return nil
}

// finish releases a deleted deployment once no replica is left, and deletes its revisions,
// without relying on a garbage collector.
func (r *Reconciler) finish(ctx context.Context, s *scope) error {
	if s.deployment.DeletionTimestamp.IsZero() || len(s.replicas)+len(s.prefetchers) > 0 ||
		!controllerutil.ContainsFinalizer(s.deployment, v1alpha1.FinalizerReplicas) {
		return nil
	}
	for _, old := range s.revisions {
		if err := r.Client.Delete(ctx, old.object, client.Preconditions{UID: &old.object.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete revision %s: %w", old.object.Name, err)
		}
	}
	if err := status.RemoveFinalizer(ctx, r.Client, v1alpha1.ManagerOperator, s.deployment, v1alpha1.FinalizerReplicas); client.IgnoreNotFound(err) != nil {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Deployment released", "freedBytesTotal", s.deployment.Status.FreedBytesTotal)
	return nil
}

// newReplica returns the replica to create.
func newReplica(s *scope, b replicaToCreate) (*v1alpha1.ModelReplica, error) {
	of := s.named(b.revision)
	if of == nil {
		return nil, fmt.Errorf("revision %s does not exist", b.revision)
	}
	e := of.engine
	reserved, err := e.ReservedBytes()
	if err != nil {
		return nil, fmt.Errorf("memory of revision %s: %w", b.revision, err)
	}
	d := s.deployment
	out := &v1alpha1.ModelReplica{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace,
			Name:      s.nameFor(replicaName(d, b)),
			Labels: map[string]string{
				v1alpha1.LabelDeployment: d.Name,
				v1alpha1.LabelRevision:   b.revision,
			},
			Finalizers:      []string{v1alpha1.FinalizerRelease},
			OwnerReferences: []metav1.OwnerReference{ownerReference(d)},
		},
		Spec: v1alpha1.ModelReplicaSpec{
			DeploymentRef: v1alpha1.DeploymentReference{Name: d.Name, UID: string(d.UID)},
			Revision:      b.revision,
			Slot:          b.slot,
			Epoch:         b.epoch,
			Model:         e.Model,
			Context:       e.Context,
			ReservedBytes: reserved,
			DrainSeconds:  drainSeconds(d),
			PrefixCache:   e.Cache(s.effective().PrefixCache),
			Residency:     fleet.Residency(d.Spec.Residency),
			Priority:      s.priority(v1alpha1.Priority{}),
			Avoid:         b.avoid,
			Desired:       v1alpha1.DesiredRunning,

			SharedPrefixes: e.SharedPrefixes,
			Sampling:       e.Sampling,
			ChatTemplate:   e.ChatTemplate,
		},
	}
	if s.oversized() != nil {
		out.Spec.Placement, _ = s.lastPlacement()
		return out, nil
	}
	out.Spec.Placement = d.Spec.Placement
	out.Labels, out.Annotations, _ = passOn(d.Spec.ReplicaMetadata, &out.ObjectMeta)
	return out, nil
}

// replicaName is derived from everything that distinguishes a replica from its siblings and
// its predecessors.
func replicaName(d *v1alpha1.ModelDeployment, b replicaToCreate) string {
	return d.Name + "-" + fleet.Digest(string(d.UID), b.revision, fmt.Sprint(b.slot), fmt.Sprint(b.epoch))[:10]
}

// nameFor returns a name without its last two digits, unless a sibling has that: among a thousand,
// two hashes may begin alike, and none could be created while the other exists.
func (s *scope) nameFor(long string) string {
	short := long[:len(long)-2]
	for _, siblings := range [][]v1alpha1.ModelReplica{s.replicas, s.prefetchers} {
		for i := range siblings {
			if siblings[i].Name == short {
				return long
			}
		}
	}
	return short
}

func drainSeconds(d *v1alpha1.ModelDeployment) int32 {
	return ptr.Deref(d.Spec.Rollout.DrainSeconds, v1alpha1.DefaultDrainSeconds)
}

const avoidFor = v1alpha1.AvoidSeconds * time.Second
