package macclass

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// member is a Mac of a class, and whether it follows it.
type member struct {
	mac     *v1alpha1.MacNode
	verdict status.Condition
}

// judge derives a Mac's condition ClassApplied from what its agent reports; the zero value for a
// Mac without a class. A nil class does not exist.
func judge(mac *v1alpha1.MacNode, class *v1alpha1.MacClass) status.Condition {
	say := func(reason, format string, args ...any) status.Condition {
		return status.False(v1alpha1.ConditionClassApplied, reason, fmt.Sprintf(format, args...))
	}
	runs := mac.Status.Settings
	switch {
	case class == nil && mac.Spec.Class == "":
		return status.Condition{}
	case class == nil:
		return say(v1alpha1.ReasonClassNotFound, "there is no MacClass %s, so the Mac keeps its settings; create it, or correct spec.class", mac.Spec.Class)
	case runs.Class != class.Name || runs.ClassGeneration != class.Generation:
		return say(v1alpha1.ReasonClassPending, "the agent has not applied generation %d of class %s yet", class.Generation, class.Name)
	case runs.Message != "":
		return say(v1alpha1.ReasonSettingsRefused, "the agent cannot apply all settings: %s", runs.Message)
	case len(runs.RestartRequired) > 0:
		return say(v1alpha1.ReasonRestartRequired, "restart the agent to apply %s", strings.Join(runs.RestartRequired, ", "))
	}
	return status.True(v1alpha1.ConditionClassApplied, v1alpha1.ReasonClassApplied, fmt.Sprintf("runs with the settings of class %s", class.Name))
}

// accepted derives the condition Accepted of a class: whether each part of its spec can have
// the intended effect.
func accepted(class *v1alpha1.MacClass, members []member) status.Condition {
	for _, h := range []struct {
		field string
		hours *v1alpha1.Hours
	}{{"maintenanceWindow", class.Spec.MaintenanceWindow}, {"settings.quietHours", quiet(class.Spec.Settings.QuietHours)}} {
		if h.hours == nil {
			continue
		}
		if _, err := h.hours.Location(); err != nil {
			return status.False(v1alpha1.ConditionAccepted, v1alpha1.ReasonUnknownTimeZone, fmt.Sprintf("spec.%s: %v", h.field, err))
		}
	}
	if r := class.Spec.Release; r != nil && len(members) > 0 {
		for i := range r.Waves {
			if !slices.ContainsFunc(members, func(m member) bool { return r.Waves[i].MacSelector.Matches(m.mac) }) {
				return status.False(v1alpha1.ConditionAccepted, v1alpha1.ReasonEmptyWave,
					fmt.Sprintf("spec.release.waves[%d] selects no Mac of the class, so the next wave does not wait for it; correct it, or label a Mac", i))
			}
		}
	}
	return status.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "the class is valid")
}

func quiet(q *v1alpha1.QuietHours) *v1alpha1.Hours {
	if q == nil {
		return nil
	}
	return &q.Hours
}

// maxNamed is how many Macs a sentence names.
const maxNamed = 5

// applied derives the condition Applied of a class: whether all its Macs follow it.
func applied(members []member) status.Condition {
	var behind []string
	reason := ""
	for _, m := range members {
		if m.verdict.Status == "True" {
			continue
		}
		behind = append(behind, m.mac.Name)
		if reason == "" {
			reason = m.verdict.Reason
		}
	}
	if len(behind) == 0 {
		return status.True(v1alpha1.ConditionApplied, v1alpha1.ReasonClassApplied, fmt.Sprintf("%d of %d Macs run with the settings of the class", len(members), len(members)))
	}
	slices.Sort(behind)
	named := strings.Join(behind[:min(len(behind), maxNamed)], ", ")
	if more := len(behind) - maxNamed; more > 0 {
		named = fmt.Sprintf("%s and %d more", named, more)
	}
	return status.False(v1alpha1.ConditionApplied, reason,
		fmt.Sprintf("%d of %d Macs do not: %s; their condition ClassApplied explains it", len(behind), len(members), named))
}
