package modeldeployment

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// scope holds what one pass read, and what it decided and did so far. The status is derived
// from it.
type scope struct {
	now        time.Time
	deployment *v1alpha1.ModelDeployment
	// ending: the namespace is being deleted.
	ending bool
	// holders of names that the deployment claims.
	holders []fleet.NameHolder
	// macs, and the rules for which of them the namespace may use, are read only if the source
	// still has to be found, or its record is not confirmed. They are the cache's own objects, which
	// must not be changed.
	macs  []v1alpha1.MacNode
	rules *v1alpha1.NamespaceRules
	// inspectors decides which Macs are asked; nil keeps nothing between passes.
	inspectors *fleet.Inspectors
	// replicas serve, or will; prefetchers only keep weights on their Macs. What they refer to is
	// shared with the cache: one is copied before a write changes it.
	replicas, prefetchers []v1alpha1.ModelReplica
	revisions             []revision
	// noToken is why there is no credential although the spec names a Secret.
	noToken *fleet.Refusal
	// secretBefore is the UID of the Secret that the status had.
	secretBefore string
	// tokenAgain is when to read that Secret again.
	tokenAgain time.Duration
	// missing are the deployments that routing names but that do not exist.
	missing []string
	// class is the PriorityClass that the spec names; nil if there is none.
	class *schedulingv1.PriorityClass
	// profile is the ModelProfile that the spec names; nil if there is none.
	profile *v1alpha1.ModelProfile

	// otherNames is how many names the other deployments of the namespace have; it is read only if
	// this one would be accepted with more than it has.
	otherNames int
	// roomAgain: there is room for the spec, for which there was none when it was read.
	roomAgain bool
	// tooLarge is why the spec is, once sized.
	tooLarge *fleet.Refusal
	sized    bool

	verdict verdict
	// current is the wanted revision.
	current *revision
	// rollout as this pass judged it, before it acted.
	rollout v1alpha1.RolloutStatus
	// overdue: it made no progress within its deadline.
	overdue bool
	failure error
	// footprint of the namespace; nil until it is needed.
	footprint *footprint
	// inherited is the placement of a replica that has that of the deployment; nil if none is known.
	inherited *v1alpha1.PlacementSpec
	// writes of replicas in this pass; more: others are left for the next one.
	writes int
	more   bool
}

const (
	// maxWrites bounds the changes and deletions of replicas in a pass: others' deployments wait
	// for it. The next pass follows after a pause.
	maxWrites  = 32
	writePause = 10 * time.Millisecond
)

// mayWrite counts a write. It returns false if the next pass has to do it.
func (s *scope) mayWrite() bool {
	if s.writes == maxWrites {
		s.more = true
		return false
	}
	s.writes++
	return true
}

// read fills a scope; nil without an error means that the deployment does not exist.
func (r *Reconciler) read(ctx context.Context, req reconcile.Request) (*scope, error) {
	s := &scope{now: r.Clock.Now(), deployment: &v1alpha1.ModelDeployment{}, inspectors: r.Inspectors}
	if err := r.Client.Get(ctx, req.NamespacedName, s.deployment); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	s.secretBefore = s.deployment.Status.SecretUID
	var namespace corev1.Namespace
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Namespace}, &namespace); err != nil {
		return nil, fmt.Errorf("read namespace: %w", err)
	}
	s.ending = !namespace.DeletionTimestamp.IsZero()
	if err := r.readProfile(ctx, s); err != nil {
		return nil, err
	}
	if err := r.readRoom(ctx, s); err != nil {
		return nil, err
	}
	if err := r.readHolders(ctx, s); err != nil {
		return nil, err
	}
	if ref := s.deployment.Spec.Model.SecretRef; ref != nil {
		var err error
		key, source := client.ObjectKey{Namespace: req.Namespace, Name: ref.Name}, s.deployment.Spec.Model.Resolved().Source
		var uid types.UID
		if uid, s.noToken, err = r.Secrets.Check(ctx, key, source); err != nil {
			return nil, err
		}
		if uid != "" {
			s.deployment.Status.SecretUID = string(uid)
		}
		s.tokenAgain = r.Secrets.Again(key, source)
	}
	if err := r.readClass(ctx, s); err != nil {
		return nil, err
	}
	if err := r.readTargets(ctx, s); err != nil {
		return nil, err
	}
	if err := r.readOwned(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// readHolders reads which other deployments hold names that this one claims. A spec that is
// too large gets no name: only those matter that the deployment already holds. Any number of
// deployments may claim a name, so they are not copied, and each is kept once and without
// its spec.
func (r *Reconciler) readHolders(ctx context.Context, s *scope) error {
	names := fleet.Claims(s.deployment)
	if s.oversized() != nil {
		names = fleet.HolderOf(s.deployment).Held
	}
	seen := sets.New(s.deployment.UID)
	for _, key := range fleet.HolderKeys(names) {
		var list v1alpha1.ModelDeploymentList // of the cache's own objects: read only
		if err := r.Client.List(ctx, &list, client.MatchingFields{fleet.IndexHolder: key}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list deployments that hold %q: %w", key, err)
		}
		for i := range list.Items {
			if o := &list.Items[i]; !seen.Has(o.UID) {
				seen.Insert(o.UID)
				s.holders = append(s.holders, fleet.HolderOf(o))
			}
		}
	}
	return nil
}

// readRoom reads whether there is room by now for a spec for which there was none.
func (r *Reconciler) readRoom(ctx context.Context, s *scope) error {
	if !fleet.Crowded(s.deployment) {
		return nil
	}
	var list v1alpha1.ModelDeploymentList // of the cache's own objects: read only
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list deployments: %w", err)
	}
	s.roomAgain = fleet.RoomAgain(s.deployment, list.Items)
	return nil
}

// judge decides on the deployment. It reads how many names others of the namespace have only if the
// deployment would get more than it has: a pass over one of thousands that are refused must not list
// all of them.
func (r *Reconciler) judge(ctx context.Context, s *scope) error {
	s.verdict = accept(s)
	if s.verdict.engine == nil || len(s.verdict.names) <= len(s.deployment.Status.ServedNames) {
		return nil
	}
	var list v1alpha1.ModelDeploymentList // of the cache's own objects: read only
	if err := r.Client.List(ctx, &list, client.InNamespace(s.deployment.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		s.verdict = verdict{}
		return fmt.Errorf("list deployments: %w", err)
	}
	s.otherNames = otherNames(s.deployment, list.Items)
	s.verdict = accept(s)
	return nil
}

// otherNames returns how many names the other deployments of the namespace have.
func otherNames(d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) (n int) {
	for i := range all {
		if o := &all[i]; o.Namespace == d.Namespace && o.Name != d.Name {
			n += len(fleet.Served(o))
		}
	}
	return n
}

// readProfile reads the ModelProfile that the spec names.
func (r *Reconciler) readProfile(ctx context.Context, s *scope) error {
	name := s.deployment.Spec.ProfileName
	if name == "" {
		return nil
	}
	profile := &v1alpha1.ModelProfile{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, profile)
	switch {
	case err == nil:
		s.profile = profile
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read ModelProfile %s: %w", name, err)
	}
	return nil
}

// effective returns the spec with the settings of its profile; without them if they cannot
// apply, which accept refuses.
func (s *scope) effective() *v1alpha1.ModelDeploymentSpec {
	spec, _ := fleet.WithProfile(&s.deployment.Spec, s.profile)
	return spec
}

// oversized refuses a spec that is too large. It is judged once, as the cache has it.
func (s *scope) oversized() *fleet.Refusal {
	if !s.sized {
		s.tooLarge, s.sized = fleet.OversizedDeployment(s.deployment, s.effective()), true
		if s.tooLarge != nil && s.roomAgain {
			// Another message is a write, with which the cache gets the whole spec.
			s.tooLarge.Message = "there is room for this spec again; the operator reads it at " + s.now.UTC().Format("2006-01-02 15:04")
		}
	}
	return s.tooLarge
}

// lastPlacement returns the placement of a replica, which was accepted; false if there is no replica.
func (s *scope) lastPlacement() (v1alpha1.PlacementSpec, bool) {
	for _, r := range slices.Concat(all(s.replicas), all(s.prefetchers)) {
		return r.Spec.Placement, true
	}
	return v1alpha1.PlacementSpec{}, false
}

// readClass reads the PriorityClass that the spec names.
func (r *Reconciler) readClass(ctx context.Context, s *scope) error {
	name := s.deployment.Spec.PriorityClassName
	if name == "" {
		return nil
	}
	class := &schedulingv1.PriorityClass{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case err == nil:
		s.class = class
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read PriorityClass %s: %w", name, err)
	}
	return nil
}

// readTargets looks for the deployments that routing names.
func (r *Reconciler) readTargets(ctx context.Context, s *scope) error {
	for _, name := range s.deployment.Spec.Routing.Targets() {
		var target v1alpha1.ModelDeployment // of the cache: read only
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.deployment.Namespace, Name: name}, &target, client.UnsafeDisableDeepCopy)
		switch {
		case apierrors.IsNotFound(err) || err == nil && !target.DeletionTimestamp.IsZero():
			s.missing = append(s.missing, name)
		case err != nil:
			return fmt.Errorf("read deployment %s that routing names: %w", name, err)
		}
	}
	return nil
}

// priority of the replicas: if it is unknown, existing replicas keep theirs.
func (s *scope) priority(before v1alpha1.Priority) v1alpha1.Priority {
	p, refusal := fleet.PriorityOf(&s.deployment.Spec, s.class)
	if refusal != nil {
		return before
	}
	return p
}

// repeatInspected is how old the message of a failed inspection gets: another one triggers nothing,
// because the server of the source writes it. Room that others leave triggers nothing either, nor do
// reports on the source of a deployment that is accepted.
const repeatInspected = 5 * time.Minute

// again returns when to look again at what no watch reports: the deployment's Secret, the progress
// deadline of a rollout, the message of a failed inspection, what Macs report of a source whose
// record is not confirmed, room that others leave, and writes that are left.
func (s *scope) again() time.Duration {
	if s.more {
		return writePause
	}
	if !s.deployment.DeletionTimestamp.IsZero() {
		return 0
	}
	out := s.untilOverdue()
	unconfirmed := s.verdict.engine != nil && !fleet.Confirmed(&s.verdict.engine.Model)
	if (s.verdict.uninspected || s.verdict.crowded || unconfirmed) && (out == 0 || out > repeatInspected) {
		out = repeatInspected
	}
	switch {
	case s.verdict.crowded: // another credential makes no room, and each look is at all deployments
		return out
	case out == 0 || s.tokenAgain == 0:
		return max(out, s.tokenAgain)
	}
	return min(out, s.tokenAgain)
}

// readOwned reads the objects of the deployment, by its UID.
func (r *Reconciler) readOwned(ctx context.Context, s *scope) error {
	own := []client.ListOption{client.InNamespace(s.deployment.Namespace), client.MatchingFields{fleet.IndexOwner: string(s.deployment.UID)}}
	var replicas v1alpha1.ModelReplicaList
	if err := r.Client.List(ctx, &replicas, append(own, client.UnsafeDisableDeepCopy)...); err != nil {
		return fmt.Errorf("list replicas: %w", err)
	}
	s.replicas, s.prefetchers = fleet.Serving(replicas.Items)
	var revisions appsv1.ControllerRevisionList
	if err := r.Client.List(ctx, &revisions, own...); err != nil {
		return fmt.Errorf("list revisions: %w", err)
	}
	var err error
	if s.revisions, err = decodeRevisions(revisions.Items); err != nil {
		return err
	}
	if have := s.ofSource(); have != nil && fleet.Confirmed(have) {
		return nil
	}
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return fmt.Errorf("list Macs: %w", err)
	}
	rules := &v1alpha1.NamespaceRules{}
	switch err := r.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.NamespaceRulesName}, rules); {
	case apierrors.IsNotFound(err):
		rules = nil
	case err != nil:
		return fmt.Errorf("read the NamespaceRules: %w", err)
	}
	s.macs, s.rules = macs.Items, rules
	return nil
}

// desired returns the desired state of the replicas from the spec.
func (s *scope) desired() desiredState {
	rollout, count := s.deployment.Spec.Rollout, int(fleet.Wanted(s.deployment))
	surge, unavailable := rollout.Bounds(count)
	return desiredState{
		unplaced: s.unplaced(),
		revision: s.current.object.Name, served: s.served(), count: count, surge: surge, unavailable: unavailable,
		swap: rollout.OnInsufficientMemory != v1alpha1.InsufficientMemoryWait, paused: rollout.Paused && !s.deployment.Spec.Suspend, halted: s.rollout.Halt != nil, avoid: avoidFor, abandoned: s.abandoned(),
		mayRemove: func(r *v1alpha1.ModelReplica) bool { return fleet.MayRemove(s.deployment, r) },
	}
}

// ends reports whether the deployment or its namespace is being deleted.
func (s *scope) ends() bool { return s.ending || !s.deployment.DeletionTimestamp.IsZero() }

// observed is the generation that the pass evaluated: that of the object, or the previous
// one if the pass failed before it could judge the spec.
func (s *scope) observed() int64 {
	if s.verdict.condition.Type == "" && !s.ends() {
		return s.deployment.Status.ObservedGeneration
	}
	return s.deployment.Generation
}

// named returns a revision by name; nil if there is none.
func (s *scope) named(name string) *revision {
	for i := range s.revisions {
		if s.revisions[i].object.Name == name {
			return &s.revisions[i]
		}
	}
	return nil
}

// markDeleted records in the scope that a replica is being deleted.
func (s *scope) markDeleted(uid types.UID) {
	for _, replica := range append(all(s.replicas), all(s.prefetchers)...) {
		if replica.UID == uid {
			replica.DeletionTimestamp = &metav1.Time{Time: s.now}
		}
	}
}

func all(replicas []v1alpha1.ModelReplica) []*v1alpha1.ModelReplica {
	out := make([]*v1alpha1.ModelReplica, len(replicas))
	for i := range replicas {
		out[i] = &replicas[i]
	}
	return out
}
