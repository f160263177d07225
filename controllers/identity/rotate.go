package identity

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/identity/rotation"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// rootLead is how long before a root expires the next one is created: the time for Macs that are
// rarely on.
const rootLead = 2 * 365 * 24 * time.Hour

// Reasons of the Events about the authority's Secret.
const (
	EventRotationBegun    = "RotationBegun"
	EventRotationSpread   = "RotationSpread"
	EventRotationRespread = "RotationRespread"
	EventRootSigns        = "RootSigns"
	EventRotationEnded    = "RotationEnded"
	EventAuthorityRefused = "AuthorityRefused"
)

// Rotation moves the authority from one root to the next.
type Rotation struct {
	Client client.Client
	Issuer *Issuer
	// Spread is how long gateways have to read a root before it signs.
	Spread  time.Duration
	Metrics *signal.Metrics
}

// SetupWithManager starts the reconciler with its watches: the authority's own Secret,
// those that publish its roots, and the trusted roots that Macs report.
func (r *Rotation) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	authority := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: r.Issuer.key()}}
	})
	itself := predicate.NewPredicateFuncs(func(o client.Object) bool { return client.ObjectKeyFromObject(o) == r.Issuer.key() })
	told := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetName() == SecretGateway || o.GetName() == v1alpha1.AgentObjectName(o.GetLabels()[v1alpha1.LabelMac])
	})
	return ctrl.NewControllerManagedBy(mgr).Named("identity-rotation").WithOptions(o).
		For(&corev1.Secret{}, builder.WithPredicates(itself)).
		Watches(&corev1.Secret{}, authority, builder.WithPredicates(told)).
		Watches(&v1alpha1.MacNode{}, authority, builder.WithPredicates(trustChanged())).
		Complete(r)
}

// trustChanged drops the figures that an agent reports all the time.
func trustChanged() predicate.Predicate {
	said := func(o client.Object) any {
		mac := o.(*v1alpha1.MacNode)
		return []any{mac.Status.TrustedRoots, lives(mac)}
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !status.Equal(said(e.ObjectOld), said(e.ObjectNew)) }}
}

// lives reports whether a Mac renewed its Lease within the last 180 s.
func lives(mac *v1alpha1.MacNode) bool {
	ready := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReady)
	return mac.DeletionTimestamp.IsZero() && ready != nil &&
		ready.Reason != v1alpha1.ReasonMacGone && ready.Reason != v1alpha1.ReasonNeverReported
}

// Reconcile takes the next step, if it is time for one.
func (r *Rotation) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var s corev1.Secret
	if err := r.Client.Get(ctx, r.Issuer.key(), &s); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the first signer creates it
	}
	now := r.Issuer.Clock.Now()
	ca, err := parseAuthority(&s, now)
	if err != nil {
		r.emit(ctx, &s, EventAuthorityRefused, err.Error(), now)
		return reconcile.Result{}, err
	}
	w, err := r.world(ctx, ca, &s)
	if err != nil {
		return reconcile.Result{}, err
	}
	d := rotation.Decide(now, ca.state, w, rotation.Policy{Spread: r.Spread, Lead: rootLead})
	r.measure(ca, d)
	if d.Step == rotation.Wait {
		// Until the awaited time; other awaited changes trigger a pass.
		return reconcile.Result{RequeueAfter: d.Again}, r.say(ctx, &s, string(ca.state.Stage())+": "+d.Why)
	}
	return reconcile.Result{}, r.step(ctx, ca, &s, d, w)
}

func (r *Rotation) measure(ca *authority, d rotation.Decision) {
	var all []string
	for _, stage := range rotation.Stages() {
		all = append(all, string(stage))
	}
	r.Metrics.Authority(string(ca.state.Stage()), all, ca.cert.NotAfter, d.Unconfirmed)
}

// world reads which Secrets are up to date, and what Macs report.
func (r *Rotation) world(ctx context.Context, ca *authority, s *corev1.Secret) (rotation.World, error) {
	w := rotation.World{Asked: s.Annotations[AnnotationRotate], AtOnce: s.Annotations[AnnotationRotateAtOnce]}
	names := func(of string) (bool, error) {
		var told corev1.Secret // of the cache: read only
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Issuer.Namespace, Name: of}, &told, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("read Secret %s: %w", of, err)
		}
		return err == nil && bytes.Equal(told.Data[keyCA], ca.bundle), nil
	}
	var err error
	if w.GatewaysUpdated, err = names(SecretGateway); err != nil {
		return w, err
	}
	var macs v1alpha1.MacNodeList
	if err := r.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy); err != nil {
		return w, fmt.Errorf("list Macs: %w", err)
	}
	for i := range macs.Items {
		mac := &macs.Items[i]
		if !mac.DeletionTimestamp.IsZero() {
			continue
		}
		m := rotation.Mac{Name: mac.Name, Lives: lives(mac)}
		if m.Updated, err = names(v1alpha1.AgentObjectName(mac.Name)); err != nil {
			return w, err
		}
		m.Confirmed = ca.state.Next != nil && slices.Contains(mac.Status.TrustedRoots, ca.state.Next.Fingerprint)
		w.Macs = append(w.Macs, m)
	}
	return w, nil
}

// step writes the Secret once, and emits an Event. If two operators decide concurrently,
// one gets a conflict.
func (r *Rotation) step(ctx context.Context, ca *authority, s *corev1.Secret, d rotation.Decision, w rotation.World) error {
	now := r.Issuer.Clock.Now()
	s = s.DeepCopy()
	if err := ca.apply(s.Data, d, w, now); err != nil {
		return err
	}
	next, err := parseAuthority(s, now)
	if err != nil {
		return fmt.Errorf("step %s of the rotation: %w", d.Step, err)
	}
	stage := string(next.state.Stage())
	annotate(s, stage+": "+d.Why)
	if err := r.Client.Update(ctx, s, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("write step %s of the rotation: %w", d.Step, err)
	}
	reason, message := describe(d, next)
	ctrl.LoggerFrom(ctx).Info("Rotation of the authority advances", "step", d.Step, "stage", stage, "why", d.Why, "root", next.state.Signing.Fingerprint)
	r.emit(ctx, s, reason, message, now)
	return nil
}

// describe returns the Event of a completed step.
func describe(d rotation.Decision, next *authority) (reason, message string) {
	short := func(r rotation.Root) string { return r.Fingerprint[:16] }
	switch d.Step {
	case rotation.Begin:
		return EventRotationBegun, fmt.Sprintf("root %s is created and published alongside %s, which continues to sign: %s", short(*next.state.Next), short(next.state.Signing), d.Why)
	case rotation.Spread:
		return EventRotationSpread, fmt.Sprintf("root %s is published; waiting for gateways to read it and for live Macs to confirm it", short(*next.state.Next))
	case rotation.Respread:
		return EventRotationRespread, "publishing the roots to gateways again: " + d.Why
	case rotation.Sign:
		return EventRootSigns, fmt.Sprintf("root %s now signs certificates: %s; root %s is trusted until %s", short(next.state.Signing), d.Why, short(*next.state.Old), stamp(next.state.OldUntil))
	}
	return EventRotationEnded, fmt.Sprintf("root %s is the only trusted root: %s", short(next.state.Signing), d.Why)
}

func annotate(s *corev1.Secret, sentence string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[AnnotationRotation] = sentence
}

// say writes what is awaited into an annotation.
func (r *Rotation) say(ctx context.Context, s *corev1.Secret, sentence string) error {
	if s.Annotations[AnnotationRotation] == sentence {
		return nil
	}
	s = s.DeepCopy()
	annotate(s, sentence)
	if err := r.Client.Update(ctx, s, client.FieldOwner(v1alpha1.ManagerOperator)); err != nil {
		return fmt.Errorf("write the state of the rotation: %w", err)
	}
	return nil
}

// emit creates an Event about the Secret. Its name is derived from its message, so that a
// state that lasts is reported once during the life of the Event.
func (r *Rotation) emit(ctx context.Context, s *corev1.Secret, reason, message string, now time.Time) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %s", s.UID, reason, message))
	kind, at := corev1.EventTypeNormal, metav1.NewTime(now)
	if reason == EventAuthorityRefused {
		kind = corev1.EventTypeWarning
	}
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: s.Namespace, Name: s.Name, UID: s.UID},
		Type:           kind, Reason: reason, Message: status.Shorten(message, 1024),
		Source:         corev1.EventSource{Component: "metalfleet-operator"},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
	err := r.Client.Create(ctx, e, client.DisableReadYourWritesConsistency)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot post an Event", "reason", reason)
	}
}
