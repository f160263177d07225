package modeldeployment

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// revision is a ControllerRevision with the engine it holds.
type revision struct {
	object *appsv1.ControllerRevision
	engine fleet.Engine
}

// decodeRevisions parses revisions and sorts them, the oldest first. An unreadable one is
// an error: ignoring it would replace running engines.
func decodeRevisions(list []appsv1.ControllerRevision) ([]revision, error) {
	out := make([]revision, 0, len(list))
	for i := range list {
		e, err := fleet.DecodeEngine(list[i].Data.Raw)
		if err != nil {
			return nil, fmt.Errorf("revision %s: %w", list[i].Name, err)
		}
		out = append(out, revision{object: &list[i], engine: e})
	}
	slices.SortFunc(out, func(a, b revision) int { return int(a.object.Revision - b.object.Revision) })
	return out, nil
}

// ensureRevision finds or creates the revision of an engine and makes it the newest. An
// engine that was wanted before gets its old revision back.
func (r *Reconciler) ensureRevision(ctx context.Context, s *scope, e fleet.Engine) (revision, error) {
	hash, err := e.Hash()
	if err != nil {
		return revision{}, err
	}
	next := int64(1)
	if n := len(s.revisions); n > 0 {
		next = s.revisions[n-1].object.Revision + 1
	}
	for i, have := range s.revisions {
		// By content, not by name: an operator version that names revisions differently
		// replaces no engine.
		if !sameEngine(have.engine, e) {
			continue
		}
		if i < len(s.revisions)-1 {
			before := have.object.DeepCopy()
			have.object.Revision = next
			if err := r.Client.Patch(ctx, have.object, client.MergeFrom(before), client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
				return revision{}, fmt.Errorf("make revision %s the newest: %w", have.object.Name, err)
			}
			s.revisions = append(slices.Delete(s.revisions, i, i+1), have)
		}
		return have, nil
	}
	data, err := e.Encode()
	if err != nil {
		return revision{}, err
	}
	spec, err := fleet.SpecOf(&s.deployment.Spec, s.profile).Encode()
	if err != nil {
		return revision{}, err
	}
	name := revisionName(s.deployment, hash)
	made := revision{engine: e, object: &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.deployment.Namespace, Name: name,
			Labels:          map[string]string{v1alpha1.LabelDeployment: s.deployment.Name},
			Annotations:     map[string]string{v1alpha1.AnnotationSpec: string(spec)},
			OwnerReferences: []metav1.OwnerReference{ownerReference(s.deployment)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: next,
	}}
	if err := r.roomForRevision(ctx, made.object); err != nil {
		return revision{}, err
	}
	if err := r.Client.Create(ctx, made.object, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return revision{}, fmt.Errorf("create revision %s: %w", name, err)
	}
	s.revisions = append(s.revisions, made)
	return made, nil
}

// perRevision is what a revision takes in memory besides its engine, at most: its metadata, and its
// entries in the indexes. An engine may have 700 bytes.
const perRevision = 2 << 10

// roomForRevision refuses a revision for which its namespace has no room. It is asked when one is
// created, which only an edit of a deployment leads to.
func (r *Reconciler) roomForRevision(ctx context.Context, made *appsv1.ControllerRevision) error {
	own, err := r.revisionBytes(ctx, client.InNamespace(made.Namespace))
	n := own + perRevision + len(made.Data.Raw)
	switch most := fleet.RevisionsRoom.Namespace; {
	case err != nil || n <= fleet.RevisionsRoom.Least:
		return err
	case n > most: // others do not matter, and to read all of theirs costs memory
		return &createRevisionError{made.Namespace, n, most}
	}
	all, err := r.revisionBytes(ctx)
	if err != nil {
		return err
	}
	if most := fleet.RevisionsRoom.Of(all - own); n > most {
		return &createRevisionError{made.Namespace, n, most}
	}
	return nil
}

// revisionBytes returns what revisions take.
func (r *Reconciler) revisionBytes(ctx context.Context, of ...client.ListOption) (n int, err error) {
	var list appsv1.ControllerRevisionList // shares its objects with the cache: read only
	if err := r.Client.List(ctx, &list, append(of, client.UnsafeDisableDeepCopy)...); err != nil {
		return 0, fmt.Errorf("list revisions: %w", err)
	}
	for i := range list.Items {
		n += perRevision + len(list.Items[i].Data.Raw)
	}
	return n, nil
}

// createRevisionError refuses a revision for which the namespace has no room.
type createRevisionError struct {
	namespace string
	bytes     int // with that revision
	most      int
}

func (e *createRevisionError) Error() string {
	return fmt.Sprintf("all revisions of the namespace %s would take %s, at most %s are allowed; delete deployments there, or lower their spec.revisionHistoryLimit",
		e.namespace, v1alpha1.FormatBytes(int64(e.bytes)), v1alpha1.FormatBytes(int64(e.most)))
}

// sameEngine reports whether two engines are the same.
func sameEngine(a, b fleet.Engine) bool { return status.Equal(a.Identity(), b.Identity()) }

// revisionName has at most 63 characters, because it is also a label. It contains the UID,
// so that a deployment never matches the revisions of a predecessor with its name.
func revisionName(d *v1alpha1.ModelDeployment, hash string) string {
	return d.Name + "-" + fleet.Digest(string(d.UID), hash)[:10]
}

// pruneRevisions deletes the oldest revisions beyond the history.
func (r *Reconciler) pruneRevisions(ctx context.Context, s *scope) error {
	for _, old := range surplusRevisions(s) {
		if err := r.Client.Delete(ctx, old.object, client.Preconditions{UID: &old.object.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete revision %s: %w", old.object.Name, err)
		}
	}
	return nil
}

// pruneWithout deletes the oldest revisions although the wanted one could not be created, if that
// is for lack of room: a lower limit has to make some.
func (r *Reconciler) pruneWithout(ctx context.Context, s *scope, why error) error {
	n := len(s.revisions)
	if !full(why) || n == 0 {
		return nil
	}
	s.current = &s.revisions[n-1]
	defer func() { s.current = nil }()
	return r.pruneRevisions(ctx, s)
}

// maxHistoryBytes bounds the engines in a deployment's history. Each may have 96 KiB, an edit
// of a few bytes makes another, and the operator has all of them in memory.
const maxHistoryBytes = 256 << 10

// surplusRevisions returns the oldest revisions beyond the limit, or beyond maxHistoryBytes,
// that no replica uses, that are not current and not a fallback. The size removes neither
// the newest of them, which an undo restores, nor more than the limit keeps.
func surplusRevisions(s *scope) []revision {
	used := map[string]bool{s.current.object.Name: true, s.served(): true}
	for i := range s.replicas {
		used[s.replicas[i].Spec.Revision] = true
	}
	var idle []revision
	for _, have := range s.revisions {
		if !used[have.object.Name] {
			idle = append(idle, have)
		}
	}
	excess := max(0, len(idle)-int(ptr.Deref(s.deployment.Spec.RevisionHistoryLimit, v1alpha1.DefaultRevisionHistoryLimit)))
	bytes := 0
	for i := len(idle) - 1; i >= excess; i-- {
		bytes += len(idle[i].object.Data.Raw)
		if bytes > maxHistoryBytes && i < len(idle)-1 {
			return idle[:i+1]
		}
	}
	return idle[:excess]
}

// deleteOrphans deletes the revisions of a deployment that have lost their owner: with --cascade=orphan, the garbage
// collector removes it. Tenants cannot delete them, and they count in the room of all namespaces.
func (r *Reconciler) deleteOrphans(ctx context.Context, req reconcile.Request) error {
	var list appsv1.ControllerRevisionList
	if err := r.Client.List(ctx, &list, client.InNamespace(req.Namespace), client.MatchingFields{fleet.IndexOwner: ""},
		client.MatchingLabels{v1alpha1.LabelDeployment: req.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list revisions without an owner: %w", err)
	}
	for i := range list.Items {
		old := &list.Items[i]
		if err := r.Client.Delete(ctx, old, client.Preconditions{UID: &old.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete revision %s, which has no owner: %w", old.Name, err)
		}
	}
	return nil
}

func ownerReference(d *v1alpha1.ModelDeployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(d, v1alpha1.GroupVersion.WithKind("ModelDeployment"))
}
