package macnode

import (
	"context"
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

// alarmEvery bounds the Events of a condition that comes and goes: each of its
// reasons is told once for all transitions of a Mac within this time.
const alarmEvery = 10 * time.Minute

// alarmed are the Mac's conditions whose changes are told as Events.
func alarmed() []string {
	return []string{v1alpha1.ConditionMemoryPressure, v1alpha1.ConditionWiredStranded,
		v1alpha1.ConditionMemoryDiverged, v1alpha1.ConditionGuardInactive}
}

// Alarms tells when a Mac's memory conditions change: a pressure level up or
// down, stranded memory, gauges that disagree, a guard that cannot act.
type Alarms struct {
	Client client.Client
	Clock  clock.PassiveClock

	// last reason seen of each condition.
	last perMac[map[string]string]
}

// SetupWithManager starts the reconciler with its watch.
func (r *Alarms) SetupWithManager(mgr ctrl.Manager, o controller.Options) error {
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !status.Equal(alarms(e.ObjectOld.(*v1alpha1.MacNode)), alarms(e.ObjectNew.(*v1alpha1.MacNode)))
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("macnode-alarms").WithOptions(o).
		For(&v1alpha1.MacNode{}, builder.WithPredicates(changed)).
		Complete(r)
}

// alarms are the reasons of a Mac's memory conditions, by condition. Sentences
// may change without anything new to tell.
func alarms(mac *v1alpha1.MacNode) map[string]string {
	out := map[string]string{}
	for _, c := range status.Pick(mac.Status.Conditions, alarmed()...) {
		out[c.Type] = string(c.Status) + " " + c.Reason
	}
	return out
}

// Reconcile tells what changed since this process last looked. A process that
// meets a Mac tells what holds there and began lately: the Event has a name
// made from the condition, so that a restart repeats nothing.
func (r *Alarms) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var mac v1alpha1.MacNode
	if err := r.Client.Get(ctx, client.ObjectKey{Name: req.Name}, &mac); err != nil {
		if apierrors.IsNotFound(err) {
			r.last.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before, met := r.last.known(mac.Name)
	next := alarms(&mac)
	for _, kind := range alarmed() {
		c := meta.FindStatusCondition(mac.Status.Conditions, kind)
		if c == nil || !r.newsworthy(c, before[kind], met, next[kind]) {
			continue
		}
		if _, err := r.notice(&mac, c).Post(ctx, r.Client, r.Clock.Now()); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.last.remember(mac.Name, next)
	return reconcile.Result{}, nil
}

// newsworthy: a change while the operator watches, to an alarm or away from
// one; at the first meeting only an alarm that began lately.
func (r *Alarms) newsworthy(c *metav1.Condition, before string, met bool, next string) bool {
	holds := c.Status == metav1.ConditionTrue
	if !met {
		return holds && r.Clock.Since(c.LastTransitionTime.Time) <= notice.Life
	}
	return before != next && (holds || c.Status == metav1.ConditionFalse && wasAlarm(before))
}

// wasAlarm reads what alarms wrote.
func wasAlarm(before string) bool { return strings.HasPrefix(before, string(metav1.ConditionTrue)+" ") }

// notice is the Event of a condition as it is now. The ID has the time of the
// transition only roughly, so that a Mac that swings between two levels does not
// cause an Event at every swing. The sentence is the Mac's: it says the next
// step.
func (r *Alarms) notice(mac *v1alpha1.MacNode, c *metav1.Condition) notice.Notice {
	window := c.LastTransitionTime.Truncate(alarmEvery).Unix()
	return notice.Notice{
		About:  notice.Of("MacNode", mac),
		ID:     fmt.Sprintf("%s %s %d", c.Status, c.Reason, window),
		Reason: c.Type, Warning: c.Status == metav1.ConditionTrue,
		Message: c.Reason + ": " + c.Message,
	}
}
