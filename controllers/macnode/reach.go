package macnode

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// reachable derives the condition Reachable from the reports of gateways. Without a report
// the condition stays as it is. The message does not contain the error, which depends on what
// is at the address that the Mac chose: its owner could scan the gateways' network.
func (h *Heartbeat) reachable(mac *v1alpha1.MacNode) []status.Condition {
	var found demand.Reach
	if h.Reach != nil {
		found = h.Reach(mac.UID)
	}
	before := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReachable)
	switch {
	case found.By > 0:
		return []status.Condition{status.True(v1alpha1.ConditionReachable, v1alpha1.ReasonReached, "gateways can connect to it")}
	case found.Known:
		return []status.Condition{status.False(v1alpha1.ConditionReachable, v1alpha1.ReasonMacUnreachable,
			fmt.Sprintf("no gateway can connect to its agent at %s. Check the address that the agent advertises (--advertise) and firewalls, or let the agent connect to the gateways (--tunnel); the operator's log has the error", addressOf(mac)))}
	case before != nil:
		return []status.Condition{{Type: before.Type, Status: before.Status, Reason: before.Reason, Message: before.Message}}
	}
	return nil
}

func addressOf(mac *v1alpha1.MacNode) string {
	a := mac.Status.Address
	if a == nil {
		return "its last address"
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// reachChanged reports whether the condition Reachable is not what gateways report now.
func (h *Heartbeat) reachChanged(mac *v1alpha1.MacNode) bool {
	for _, c := range h.reachable(mac) {
		before := meta.FindStatusCondition(mac.Status.Conditions, c.Type)
		return before == nil || before.Status != c.Status
	}
	return false
}

// lookAtReach triggers the reconciler for each Mac that gateways reach or no longer reach. Suspended ones, whose writes
// wait, have time until look.
func (w *watchdog) lookAtReach(ctx context.Context) {
	h := w.heartbeat
	var macs v1alpha1.MacNodeList
	if h.Reach == nil || h.Client.List(ctx, &macs, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency) != nil {
		return
	}
	for i := range macs.Items {
		if suspended(&macs.Items[i]) || !h.reachChanged(&macs.Items[i]) {
			continue
		}
		if found := h.Reach(macs.Items[i].UID); found.Known && found.By == 0 {
			log.FromContext(ctx).Info("no gateway can connect to a Mac", "mac", macs.Items[i].Name, "error", found.Err)
		}
		select {
		case h.wake <- event.GenericEvent{Object: macs.Items[i].DeepCopy()}:
		case <-ctx.Done():
			return
		}
	}
}

// unreachable is the Event of a Mac to which no gateway can connect any more.
func unreachable(mac *v1alpha1.MacNode, before, after []metav1.Condition) []notice.Notice {
	now := meta.FindStatusCondition(after, v1alpha1.ConditionReachable)
	if now == nil || now.Status != metav1.ConditionFalse || meta.IsStatusConditionFalse(before, v1alpha1.ConditionReachable) {
		return nil
	}
	return []notice.Notice{{About: notice.Of("MacNode", mac), ID: fmt.Sprint(now.LastTransitionTime.Truncate(alertEvery).Unix()),
		Reason: now.Reason, Message: now.Message, Warning: true}}
}
