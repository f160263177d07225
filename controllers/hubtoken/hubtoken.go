// Package hubtoken copies the credentials of users to the Macs that need them: hub tokens,
// access keys of buckets and logins of registries.
//
// It owns the keys "hub-token.REF" in each Mac's Secret: one for each tokenRef in the Mac's
// assignments and inspections, no other. A credential is copied from the Secret that a
// deployment names in its own namespace to exactly the Macs that work for that deployment,
// follows when its owner replaces it, and is removed when no entry names it any more or its
// Secret is deleted. It never touches another key, does not treat an unreadable Secret as
// deleted, and puts no credential into a log, Event or error.
//
// Start reading at Reconciler.Reconcile, then change.
package hubtoken

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/hubsecret"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
)

// A user's Secret is read by the name in a deployment of its namespace,
// and never listed or watched.
// +kubebuilder:rbac:groups="",resources=secrets,namespace=metalfleet-system,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macassignments;modeldeployments;modelreplicas,verbs=get;list;watch

// Reconciler maintains the credentials of each Mac.
type Reconciler struct {
	Client client.Client
	// Secrets reads the Secrets of users.
	Secrets *hubsecret.Reader
	// Namespace of the Macs' Secrets.
	Namespace string

	// written are the writes that each namespace causes, and their bytes.
	written notice.Limits
}

// The Secret of a Mac is written whole. A namespace may cause burst writes at once, as when it replaces
// a credential that many Macs have, then one each interval. Each writeBytes of its credentials count as one more.
const (
	burst      = 1024
	interval   = 500 * time.Millisecond
	writeBytes = 16 << 10
)

// New returns a reconciler.
func New(c client.Client, secrets *hubsecret.Reader, namespace string) *Reconciler {
	return &Reconciler{Client: c, Secrets: secrets, Namespace: namespace, written: notice.Limits{Burst: burst, Every: interval}}
}

// SetupWithManager starts the reconciler with its watches: Macs whose entries name other
// credentials, and Macs' Secrets that were changed or recreated.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).Named("hub-tokens").WithOptions(o).
		For(&v1alpha1.MacAssignment{}, builder.WithPredicates(refsChanged())).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.ofMac)).
		Complete(r)
}

func refsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(fleet.TokenRefs(e.ObjectOld.(*v1alpha1.MacAssignment)), fleet.TokenRefs(e.ObjectNew.(*v1alpha1.MacAssignment)))
	}}
}

// ofMac returns the Mac of a Secret.
func (r *Reconciler) ofMac(_ context.Context, o client.Object) []reconcile.Request {
	mac := o.GetLabels()[v1alpha1.LabelMac]
	if mac == "" || o.GetNamespace() != r.Namespace || o.GetName() != v1alpha1.AgentObjectName(mac) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: mac}}}
}

// Reconcile writes the credentials of one Mac if they changed.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var assigned v1alpha1.MacAssignment
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &assigned); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.AgentObjectName(req.Name)}
	if err := r.Client.Get(ctx, key, &secret); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the watch reports it once it exists
	}
	w, failure := r.wanted(ctx, &assigned, secret.Data)
	r.pace(w, secret.Data)
	if change(&secret, w) {
		if err := r.Client.Update(ctx, &secret, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
			return reconcile.Result{}, errors.Join(failure, fmt.Errorf("write hub tokens of Mac %s: %w", req.Name, err))
		}
		ctrl.LoggerFrom(ctx).Info("Hub tokens of a Mac changed", "Secret", key, "tokens", len(w.tokens))
	}
	result := reconcile.Result{}
	if len(w.refs) > 0 { // until a Secret exists, or its owner may have replaced it
		result.RequeueAfter = cmp.Or(w.again, hubsecret.AgainMissing)
	}
	return result, failure
}

// wants are the credentials of one Mac, by reference.
type wants struct {
	refs   []string
	tokens map[string][]byte
	of     map[string]string // the namespaces of tokens
	// unknown references stay as they are: their Secrets cannot be read, or copied, at the moment.
	unknown map[string]bool
	// again is when to look at the first of their Secrets again; 0 if no deployment names one.
	again time.Duration
}

// wanted reads the Secrets of a Mac's references. Only a deployment gives a reference its meaning,
// and only in its own namespace. If not all can be read now, those that the Mac lacks are first, and
// the order of the others differs from pass to pass.
func (r *Reconciler) wanted(ctx context.Context, assigned *v1alpha1.MacAssignment, has map[string][]byte) (wants, error) {
	w := wants{refs: fleet.TokenRefs(assigned), tokens: map[string][]byte{}, of: map[string]string{}, unknown: map[string]bool{}}
	rand.Shuffle(len(w.refs), func(i, j int) { w.refs[i], w.refs[j] = w.refs[j], w.refs[i] })
	lacks := func(ref string) bool { return has[v1alpha1.HubTokenKeyPrefix+ref] == nil }
	slices.SortStableFunc(w.refs, func(a, b string) int {
		switch {
		case lacks(a) == lacks(b):
			return 0
		case lacks(a):
			return -1
		}
		return 1
	})
	var failures []error
	for _, ref := range w.refs {
		d, source, err := r.meaning(ctx, assigned, ref)
		if err != nil {
			return w, err
		}
		if d == nil {
			continue // no deployment uses it any more
		}
		key := client.ObjectKey{Namespace: d.Namespace, Name: d.Spec.Model.SecretRef.Name}
		credential, refusal, err := r.Secrets.Read(ctx, key, source)
		if again := r.Secrets.Again(key, source); w.again == 0 || again < w.again {
			w.again = again
		}
		switch {
		case errors.Is(err, hubsecret.ErrLater):
			w.unknown[ref] = true
		case err != nil:
			failures, w.unknown[ref] = append(failures, err), true
		case refusal == nil && string(credential.UID) == d.Status.SecretUID: // else the reference will be another
			w.tokens[ref], w.of[ref] = credential.Token, d.Namespace
		case refusal != nil && refusal.Reason == v1alpha1.ReasonSecretForbidden:
			w.unknown[ref] = true
		}
	}
	return w, errors.Join(failures...)
}

// pace leaves the credentials of namespaces that caused too many writes as they are. What leaves is
// removed at once: it was written before.
func (r *Reconciler) pace(w wants, has map[string][]byte) {
	changed := map[string]int{} // bytes, by namespace
	differs := func(ref string) bool { return !bytes.Equal(has[v1alpha1.HubTokenKeyPrefix+ref], w.tokens[ref]) }
	for ref, token := range w.tokens {
		if differs(ref) {
			changed[w.of[ref]] += len(token)
		}
	}
	now := r.Secrets.Clock.Now()
	for namespace, size := range changed {
		if r.written.AllowN(namespace, now, 1+size/writeBytes) {
			continue
		}
		for ref := range w.tokens {
			if w.of[ref] == namespace && differs(ref) {
				delete(w.tokens, ref)
				w.unknown[ref] = true
			}
		}
	}
}

// meaning returns a deployment that uses a reference, and the source that it is for: its own, or an
// earlier one of it, of which this Mac has a replica. Neither may be changed.
func (r *Reconciler) meaning(ctx context.Context, assigned *v1alpha1.MacAssignment, ref string) (*v1alpha1.ModelDeployment, string, error) {
	var list v1alpha1.ModelDeploymentList // of the cache's own objects: read only
	if err := r.Client.List(ctx, &list, client.MatchingFields{fleet.IndexTokenRef: ref}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, "", fmt.Errorf("list deployments of a hub token: %w", err)
	}
	if len(list.Items) > 0 {
		d := &list.Items[0]
		return d, d.Spec.Model.Resolved().Source, nil
	}
	for i := range assigned.Spec.Assignments {
		a := &assigned.Spec.Assignments[i]
		if a.TokenRef != ref {
			continue
		}
		var replica v1alpha1.ModelReplica
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Name}, &replica, client.UnsafeDisableDeepCopy)
		d := &v1alpha1.ModelDeployment{}
		if err == nil {
			err = r.Client.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: replica.Spec.DeploymentRef.Name}, d, client.UnsafeDisableDeepCopy)
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, "", fmt.Errorf("read the deployment of replica %s/%s: %w", a.Namespace, a.Name, err)
		}
		if err == nil && string(d.UID) == replica.Spec.DeploymentRef.UID && fleet.TokenRefFor(d, a.Model.Source) == ref {
			return d, a.Model.Source, nil
		}
	}
	return nil, "", nil
}

// change updates a Mac's Secret, and reports whether that changed it.
func change(s *corev1.Secret, w wants) bool {
	next := maps.Clone(s.Data)
	if next == nil {
		next = map[string][]byte{}
	}
	maps.DeleteFunc(next, func(k string, _ []byte) bool {
		ref, ours := strings.CutPrefix(k, v1alpha1.HubTokenKeyPrefix)
		return ours && w.tokens[ref] == nil && !w.unknown[ref]
	})
	for ref, token := range w.tokens {
		next[v1alpha1.HubTokenKeyPrefix+ref] = token
	}
	if maps.EqualFunc(s.Data, next, bytes.Equal) {
		return false
	}
	s.Data = next
	return true
}
