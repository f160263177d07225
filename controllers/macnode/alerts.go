package macnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// alertEvery limits the Events of a condition that flaps: each of its reasons is reported
// once for all transitions of a Mac within this time.
const alertEvery = 10 * time.Minute

// alerted are the Mac's conditions whose changes are reported as Events.
func alerted() []string {
	return []string{v1alpha1.ConditionMemoryPressure, v1alpha1.ConditionWiredStranded,
		v1alpha1.ConditionMemoryDiverged, v1alpha1.ConditionGuardInactive}
}

// Alerts emits Events when a Mac's memory conditions change: a pressure level up or down,
// stranded memory, disagreeing gauges, a guard that cannot act.
type Alerts struct {
	Client client.Client
	Clock  clock.PassiveClock

	// last reason of each condition.
	last perMac[map[string]string]
	// limits bound the Events: the reasons are the Mac's words.
	limits notice.Limits
}

// SetupWithManager starts the reconciler with its watch.
func (r *Alerts) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !status.Equal(alerts(e.ObjectOld.(*v1alpha1.MacNode)), alerts(e.ObjectNew.(*v1alpha1.MacNode)))
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-alerts").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(changed)).
		Complete(r)
}

// alerts returns the reasons of a Mac's memory conditions, by condition. A changed message
// alone is not reported.
func alerts(mac *v1alpha1.MacNode) map[string]string {
	out := map[string]string{}
	for _, c := range status.Pick(mac.Status.Conditions, alerted()...) {
		out[c.Type] = string(c.Status) + " " + c.Reason
	}
	return out
}

// Reconcile reports what changed since this process last looked. A process that sees a Mac
// for the first time reports conditions that became true recently: the Event's name is
// derived from the condition, so that a restart repeats nothing.
func (r *Alerts) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		if apierrors.IsNotFound(err) {
			r.last.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before, met := r.last.known(mac.Name)
	next := alerts(&mac)
	var failures []error // an Event that cannot be created must not keep the others back
	for _, kind := range alerted() {
		c := meta.FindStatusCondition(mac.Status.Conditions, kind)
		if c == nil || !r.newsworthy(c, before[kind], met, next[kind]) || !r.limits.Allow(mac.Name, r.Clock.Now()) {
			continue
		}
		if _, err := r.notice(&mac, c).Post(ctx, r.Client, r.Clock.Now()); err != nil {
			failures = append(failures, err)
			next[kind] = before[kind] // so that it is tried again
		}
	}
	r.last.remember(mac.Name, next)
	return reconcile.Result{}, errors.Join(failures...)
}

// newsworthy reports whether to emit an Event: for a change to or from an alert while the
// operator watches; at the first look only for a recent alert.
func (r *Alerts) newsworthy(c *metav1.Condition, before string, met bool, next string) bool {
	holds := c.Status == metav1.ConditionTrue
	if !met {
		return holds && r.Clock.Since(c.LastTransitionTime.Time) <= notice.Life
	}
	return before != next && (holds || c.Status == metav1.ConditionFalse && wasAlert(before))
}

// wasAlert parses a value from alerts.
func wasAlert(before string) bool { return strings.HasPrefix(before, string(metav1.ConditionTrue)+" ") }

// notice returns the Event of a condition. The ID contains the transition time rounded, so
// that a Mac that flaps between two levels does not cause an Event every time. The message
// is the Mac's and contains the next step.
func (r *Alerts) notice(mac *v1alpha1.MacNode, c *metav1.Condition) notice.Notice {
	window := c.LastTransitionTime.Truncate(alertEvery).Unix()
	return notice.Notice{
		About:  notice.Of("MacNode", mac),
		ID:     fmt.Sprintf("%s %s %d", c.Status, c.Reason, window),
		Reason: c.Type, Warning: c.Status == metav1.ConditionTrue,
		Message: c.Reason + ": " + c.Message,
	}
}
