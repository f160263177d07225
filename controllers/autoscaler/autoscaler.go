// Package autoscaler adjusts the number of replicas of deployments with autoscaling to
// their load.
//
// It owns status.autoscaling, under its own field manager: the number, the reason for it,
// and the memory that the next operator needs. It decides nothing: package scale does, from
// the reports of gateways in package demand. It creates and deletes no replica:
// modeldeployment does, using the number and the names of the removable ones.
//
// Each deployment is evaluated every second, from the cache and from memory, and at once
// when a gateway queues a request. It is written when the number changes, and rarely
// otherwise: see worth. A busy replica that is to be removed gets an annotation that makes
// gateways prefer others.
//
// Start reading at Reconciler.Reconcile.
package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=metalfleet-system,verbs=get;list;watch

// DefaultService is the Service of the gateways, in the operator's namespace.
const DefaultService = "metalfleet-gateway"

// every is the interval of evaluations.
const every = time.Second

// Reconciler decides for one deployment at a time.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock
	Ledger *demand.Ledger
	// Namespace and name of the gateways' Service.
	Namespace, Service string
	Metrics            *signal.Metrics

	urgent chan event.GenericEvent
	mu     sync.Mutex // guards known
	known  map[types.NamespacedName]*known
}

// known is what this process remembers of a deployment. Only one worker reconciles a key at
// a time.
type known struct {
	uid     types.UID
	memory  scale.Memory
	starts  starts
	last    v1alpha1.AutoscalingStatus // as written
	written time.Time
}

// New returns a reconciler.
func New(c client.Client, clock clock.PassiveClock, namespace string, l *demand.Ledger, m *signal.Metrics) *Reconciler {
	return &Reconciler{Client: c, Clock: clock, Namespace: namespace, Service: DefaultService, Ledger: l, Metrics: m, urgent: make(chan event.GenericEvent, 1024), known: map[types.NamespacedName]*known{}}
}

// Urgent triggers an evaluation of a deployment. If its channel is full, the regular
// evaluation follows within a second.
func (r *Reconciler) Urgent(key types.NamespacedName) {
	select {
	case r.urgent <- event.GenericEvent{Object: &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}}:
	default:
	}
}

// SetupWithManager starts the reconciler with its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	return ctrl.NewControllerManagedBy(mgr).Named("autoscaler").WithOptions(o).
		For(&v1alpha1.ModelDeployment{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Channel(r.urgent, &handler.EnqueueRequestForObject{})).
		Complete(r)
}

// Reconcile reads, decides and writes what is worth writing.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var d v1alpha1.ModelDeployment
	if err := r.Client.Get(ctx, req.NamespacedName, &d); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !d.DeletionTimestamp.IsZero() || d.Spec.Autoscaling == nil {
		r.forget(req.NamespacedName)
		return reconcile.Result{}, r.retire(ctx, &d)
	}
	own, err := r.replicas(ctx, &d)
	if err != nil {
		return reconcile.Result{}, err
	}
	if d.Spec.Suspend {
		// The status stays: once it is resumed the decision continues as after a restart.
		r.forget(req.NamespacedName)
		return reconcile.Result{}, r.mark(ctx, own, nil)
	}
	k, now := r.of(&d), r.Clock.Now()
	k.starts.look(own, now)
	serve, err := r.gateways(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	figures, why := r.figures(req.NamespacedName, k.memory.Seen, serve)
	decision := scale.Decide(Policy(&d), k.memory, figures, Replicas(&d, own, r.Ledger.Busy), now)
	if decision.Reason == scale.Unheard {
		decision.Message += ": " + why
	}
	k.memory = decision.Memory
	if err := errors.Join(r.mark(ctx, own, decision.Retire), r.write(ctx, &d, k, decision, now)); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: every}, nil // figures change all the time
}

// mark sets the annotation that makes gateways avoid the replicas to be removed, and clears
// it on the others.
func (r *Reconciler) mark(ctx context.Context, own []v1alpha1.ModelReplica, retire []string) error {
	for i := range own {
		replica := &own[i]
		is, want := replica.Annotations[v1alpha1.AnnotationRetiring] != "", slices.Contains(retire, string(replica.UID))
		if is == want || !replica.DeletionTimestamp.IsZero() {
			continue
		}
		before := replica.DeepCopy()
		before.DeepCopyInto(replica) // the cache keeps its own
		if delete(replica.Annotations, v1alpha1.AnnotationRetiring); want {
			metav1.SetMetaDataAnnotation(&replica.ObjectMeta, v1alpha1.AnnotationRetiring, "true")
		}
		err := r.Client.Patch(ctx, replica, client.MergeFrom(before), client.FieldOwner(v1alpha1.ManagerAutoscaler))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("mark replica %s: %w", replica.Name, err)
		}
	}
	return nil
}

// gateways returns how many gateways accept requests, by the endpoints of their Service; 0
// if they run elsewhere.
func (r *Reconciler) gateways(ctx context.Context) (int, error) {
	var slices discoveryv1.EndpointSliceList
	err := r.Client.List(ctx, &slices, client.InNamespace(r.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: r.Service}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("list endpoints of gateways: %w", err)
	}
	return Serving(slices.Items), nil
}

// Figures returns the sum for one deployment, and why it is incomplete; empty if it is
// complete.
func (r *Reconciler) Figures(ctx context.Context, key types.NamespacedName) (f demand.Figures, part string, err error) {
	serve, err := r.gateways(ctx)
	if err != nil {
		return f, "", err
	}
	f = r.Ledger.Of(key)
	_, part = r.Ledger.Whole(serve)
	return f, part, nil
}

// figures returns the current sum, and why it is incomplete.
func (r *Reconciler) figures(key types.NamespacedName, seen time.Time, serve int) (scale.Figures, string) {
	f := r.Ledger.Of(key)
	whole, why := r.Ledger.Whole(serve)
	return scale.Figures{Requests: f.Running + f.Waiting, Waiting: f.Waiting, Oldest: f.Oldest,
		Asked: !f.Asked.IsZero() && !f.Asked.Before(seen), Complete: whole}, why
}

// of returns what is remembered of a deployment, by this process or, from the status, by an
// earlier one.
func (r *Reconciler) of(d *v1alpha1.ModelDeployment) *known {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := client.ObjectKeyFromObject(d)
	k := r.known[key]
	if k == nil || k.uid != d.UID {
		k = &known{uid: d.UID, memory: Recall(d.Status.Autoscaling)}
		if a := d.Status.Autoscaling; a != nil {
			k.starts.last = time.Duration(a.StartSeconds) * time.Second
		}
		r.known[key] = k
	}
	return k
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, key)
}

// retire clears what was written for a deployment that no longer uses autoscaling.
func (r *Reconciler) retire(ctx context.Context, d *v1alpha1.ModelDeployment) error {
	if d.Status.Autoscaling == nil || !d.DeletionTimestamp.IsZero() {
		return nil
	}
	own, err := r.replicas(ctx, d)
	if err := errors.Join(err, r.mark(ctx, own, nil)); err != nil {
		return err
	}
	return status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerAutoscaler, configure(d, ac.ModelDeploymentStatus()))
}

// configure returns the apply configuration of a deployment's status.
func configure(d *v1alpha1.ModelDeployment, s *ac.ModelDeploymentStatusApplyConfiguration) *ac.ModelDeploymentApplyConfiguration {
	return ac.ModelDeployment(d.Name, d.Namespace).WithUID(d.UID).WithStatus(s)
}

// replicas returns those of a deployment that serve, or will. What they refer to is shared with the
// cache.
func (r *Reconciler) replicas(ctx context.Context, d *v1alpha1.ModelDeployment) ([]v1alpha1.ModelReplica, error) {
	var own v1alpha1.ModelReplicaList
	err := r.Client.List(ctx, &own, client.InNamespace(d.Namespace), client.MatchingFields{fleet.IndexOwner: string(d.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list replicas: %w", err)
	}
	serving, _ := fleet.Serving(own.Items)
	return serving, nil
}

// write stores a decision that is worth writing, and then emits an Event if the number
// changed.
func (r *Reconciler) write(ctx context.Context, d *v1alpha1.ModelDeployment, k *known, decision scale.Decision, now time.Time) error {
	before := d.Status.Autoscaling
	next := Record(decision, k.starts.last, now)
	if !worth(before, next, k.written, now) {
		return nil
	}
	// A tenant may keep a field by an entry in managedFields: to leave it out again changes nothing.
	if before != nil && now.Sub(k.written) < rememberEvery && !worth(&k.last, next, k.written, now) {
		return nil
	}
	applied, err := status.Convert[ac.AutoscalingStatusApplyConfiguration](next)
	if err != nil {
		return err
	}
	if err := status.ApplyStatus(ctx, r.Client, v1alpha1.ManagerAutoscaler, configure(d, ac.ModelDeploymentStatus().WithAutoscaling(applied))); err != nil {
		return err
	}
	k.last, k.written = next, now
	if before == nil || before.DesiredReplicas == next.DesiredReplicas {
		return nil
	}
	r.Metrics.Scaled(next.Reason)
	ctrl.LoggerFrom(ctx).Info("Deployment scaled", "from", before.DesiredReplicas, "to", next.DesiredReplicas, "reason", next.Reason, "message", next.Message)
	notice.PostAll(ctx, r.Client, now, scaleNotice(d, before.DesiredReplicas, next))
	return nil
}

// scaleNotice returns the Event of a decision. Its ID is derived from the decision, so that
// each decision has one Event.
func scaleNotice(d *v1alpha1.ModelDeployment, from int32, to v1alpha1.AutoscalingStatus) notice.Notice {
	return notice.Notice{
		About: notice.Of("ModelDeployment", d), ID: fmt.Sprint(from, to.DesiredReplicas, to.LastScaleTime), Reason: "Scaled",
		Message: fmt.Sprintf("scaled from %d to %d replicas (%s): %s", from, to.DesiredReplicas, to.Reason, to.Message),
	}
}
