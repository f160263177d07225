package modelreplica

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
)

// Reason of the Event of finished downloads; the other Events have the reasons
// of conditions.
const eventDownloaded = "Downloaded"

// notices returns the Events of a Mac's actions between two statuses of a replica: a
// download began, failed or finished, the model was loaded. Earlier passes posted what is
// in the stored status. The end of an engine, with the freed bytes, is an Event of package
// macnode.
func notices(r *v1alpha1.ModelReplica, before, next []metav1.Condition) []notice.Notice {
	mac := cmp.Or(r.Spec.NodeName, r.Spec.PrefetchNodeName)
	var out []notice.Notice
	add := func(warning bool, reason, id, message string) {
		out = append(out, notice.Notice{About: notice.Of("ModelReplica", r), ID: mac + " " + id, Reason: reason, Message: message, Warning: warning})
	}
	reason := func(conditions []metav1.Condition, kind string) string {
		if c := meta.FindStatusCondition(conditions, kind); c != nil {
			return c.Reason
		}
		return ""
	}
	if c := meta.FindStatusCondition(next, v1alpha1.ConditionDownloaded); c != nil && c.Reason != reason(before, c.Type) {
		size := v1alpha1.FormatBytes(r.Spec.Model.Bytes())
		switch {
		case c.Status == metav1.ConditionTrue:
			add(false, eventDownloaded, "", size+" are on the disk of "+mac+" and verified")
		case c.Reason == v1alpha1.ReasonDownloading:
			add(false, c.Reason, "", fmt.Sprintf("%s downloads %s from %s: %s", mac, size, r.Spec.Model.Source, c.Message))
		case c.Reason != v1alpha1.ReasonWaiting:
			add(true, c.Reason, "", mac+": "+c.Message)
		}
	}
	if c := meta.FindStatusCondition(next, v1alpha1.ConditionLoaded); c != nil && c.Status == metav1.ConditionTrue && !meta.IsStatusConditionTrue(before, c.Type) {
		// Each load of a model on demand is one.
		add(false, v1alpha1.ReasonLoaded, fmt.Sprint(c.LastTransitionTime.Unix()), "loaded on "+mac+", "+v1alpha1.FormatBytes(r.Spec.ReservedBytes)+" are reserved")
	}
	return out
}
