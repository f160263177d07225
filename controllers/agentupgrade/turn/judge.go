package turn

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Judge derives a Mac's condition AgentCurrent. If several reasons apply, it reports the
// one that needs attention most.
func Judge(w *v1alpha1.AgentRelease, mac Mac, operator string) metav1.Condition {
	runs := mac.Status.AgentVersion
	say := func(s metav1.ConditionStatus, reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionAgentCurrent, Status: s, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	if runs == "" {
		return say(metav1.ConditionUnknown, v1alpha1.ReasonAgentUnversioned, "the Mac's agent has not reported yet")
	}
	up, order := mac.Status.AgentUpgrade, mac.Order
	switch {
	case up.Is(order) && up.Phase == v1alpha1.UpgradeRolledBack:
		return say(metav1.ConditionFalse, v1alpha1.ReasonAgentRolledBack, "%s did not become ready, and %s runs again: %s", up.To, runs, up.Message)
	case up.Is(order) && up.Phase == v1alpha1.UpgradeRefused:
		return say(metav1.ConditionFalse, v1alpha1.ReasonAgentRefused, "%s was not installed: %s", up.To, up.Message)
	case order != nil && (order.Version != runs || busy(mac)):
		return say(metav1.ConditionFalse, v1alpha1.ReasonAgentUpgrading, "runs %s, upgrading to %s: %s", runs, order.Version, progress(mac.MacNode, up, order))
	}
	served, reason, message := serves(operator, runs)
	switch {
	case served == metav1.ConditionFalse:
		return say(served, reason, "%s", message)
	case w != nil && w.Version == runs:
		return say(metav1.ConditionTrue, v1alpha1.ReasonAgentCurrent, "runs the requested version %s", runs)
	case w != nil && (w.Mac == "" || w.Mac == mac.Name):
		return say(metav1.ConditionFalse, v1alpha1.ReasonAgentOutdated, "runs %s, but %s is requested; `kubectl metalfleet upgrade-agents --status` shows the progress of the upgrade", runs, w.Version)
	}
	return say(served, reason, "%s", message)
}

// serves reports whether an operator serves an agent. Operator N serves agents N and N-1,
// counted in minor versions of one major version; the first minor of a major version serves
// every minor of the previous major, whose last minor is unknown. Patch and pre-release do
// not count. Two equal versions always match; others that are not semantic versions cannot
// be compared.
func serves(operator, agent string) (status metav1.ConditionStatus, reason, message string) {
	if operator == agent {
		return metav1.ConditionTrue, v1alpha1.ReasonAgentSupported, "runs " + agent + ", the version of the operator"
	}
	o, err1 := version.ParseSemantic(operator)
	a, err2 := version.ParseSemantic(agent)
	if err1 != nil || err2 != nil {
		return metav1.ConditionUnknown, v1alpha1.ReasonAgentUnversioned,
			fmt.Sprintf("the versions of the agent (%s) and the operator (%s) cannot be compared; the operator accepts the agent", agent, operator)
	}
	newer := a.Major() > o.Major() || a.Major() == o.Major() && a.Minor() > o.Minor()
	same := a.Major() == o.Major() && a.Minor()+1 >= o.Minor()
	before := a.Major()+1 == o.Major() && o.Minor() == 0
	switch {
	case newer:
		return metav1.ConditionFalse, v1alpha1.ReasonAgentTooNew,
			fmt.Sprintf("the agent version %s is newer than the operator version %s; upgrade CRDs and operator first (helm upgrade), then agents", agent, operator)
	case same || before:
		return metav1.ConditionTrue, v1alpha1.ReasonAgentSupported, fmt.Sprintf("runs %s, which operator %s supports", agent, operator)
	}
	return metav1.ConditionFalse, v1alpha1.ReasonAgentTooOld,
		fmt.Sprintf("the agent version %s is too old: operator %s supports its own minor version and the previous one; upgrade the agent: kubectl metalfleet upgrade-agents --mac NAME", agent, operator)
}
