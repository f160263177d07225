package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// The terms of an affinity are evaluated as they are written, with the rules of the scheduler's
// package nodeaffinity: a tenant may write thousands of values, which that package checks with a
// regular expression each, and of which it keeps an error each.

// Bounds of label names and values, and of what a message repeats of them.
const (
	maxLabelPart   = 63
	maxLabelPrefix = 253
	maxQuoted      = 64
)

// invalidAffinity returns the first field of an affinity that no label can match, or that
// contradicts its operator, in at most about 256 bytes; empty if there is none.
func invalidAffinity(a *v1alpha1.NodeAffinity) string {
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			if why := invalidTerm(&required.NodeSelectorTerms[i]); why != "" {
				return fmt.Sprintf("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[%d].%s", i, why)
			}
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		if why := invalidTerm(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference); why != "" {
			return fmt.Sprintf("preferredDuringSchedulingIgnoredDuringExecution[%d].preference.%s", i, why)
		}
	}
	return ""
}

func invalidTerm(t *v1alpha1.NodeSelectorTerm) string {
	for i := range t.MatchExpressions {
		if why := invalidExpression(&t.MatchExpressions[i]); why != "" {
			return fmt.Sprintf("matchExpressions[%d].%s", i, why)
		}
	}
	for i, r := range t.MatchFields {
		if r.Key != metadataName || len(r.Values) != 1 || r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn {
			return fmt.Sprintf("matchFields[%d] must have the key %s, the operator In or NotIn, and one value", i, metadataName)
		}
	}
	return ""
}

const metadataName = "metadata.name"

func invalidExpression(r *v1alpha1.NodeSelectorRequirement) string {
	if !isLabelName(r.Key) {
		return fmt.Sprintf("key: %s is no label name", quoted(r.Key))
	}
	ordered := false
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			return "values: In and NotIn need at least one"
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			return "values: Exists and DoesNotExist take none"
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			return "values: Gt and Lt need exactly one"
		}
		ordered = true
	default:
		return fmt.Sprintf("operator: %s is unknown", quoted(string(r.Operator)))
	}
	for i, v := range r.Values {
		if ordered {
			if _, err := strconv.ParseInt(v, 10, 64); err != nil || v[0] == '+' {
				return fmt.Sprintf("values[%d]: %s is no integer", i, quoted(v))
			}
		} else if !isLabelValue(v) {
			return fmt.Sprintf("values[%d]: %s is no label value", i, quoted(v))
		}
	}
	return ""
}

// quoted returns the beginning of a text in quotes.
func quoted(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "..."
	}
	return strconv.Quote(s)
}

// isLabelName reports whether a label can have this name, such as room or example.com/room.
func isLabelName(s string) bool {
	prefix, name, found := strings.Cut(s, "/")
	if !found {
		return s != "" && isLabelValue(s)
	}
	if len(prefix) > maxLabelPrefix || name == "" || !isLabelValue(name) {
		return false
	}
	for part := range strings.SplitSeq(prefix, ".") {
		if !bounded(part, func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }, "-") {
			return false
		}
	}
	return true
}

// isLabelValue reports whether a label can have this value.
func isLabelValue(s string) bool {
	return s == "" || len(s) <= maxLabelPart && bounded(s, func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}, "-_.")
}

// bounded reports whether a text begins and ends with a character that may bound it, and has
// only such characters and inner ones.
func bounded(s string, bound func(byte) bool, inner string) bool {
	for i := range len(s) {
		if !bound(s[i]) && (i == 0 || i == len(s)-1 || strings.IndexByte(inner, s[i]) < 0) {
			return false
		}
	}
	return s != ""
}

// anyTerm reports whether a Mac matches at least one of the terms.
func anyTerm(terms []v1alpha1.NodeSelectorTerm, mac *v1alpha1.MacNode) bool {
	for i := range terms {
		if matchesTerm(&terms[i], mac) {
			return true
		}
	}
	return false
}

// matchesTerm reports whether a Mac satisfies all of a term; an empty one matches none.
func matchesTerm(t *v1alpha1.NodeSelectorTerm, mac *v1alpha1.MacNode) bool {
	for i := range t.MatchExpressions {
		if !matchesLabels(&t.MatchExpressions[i], mac.Labels) {
			return false
		}
	}
	for _, r := range t.MatchFields {
		if slices.Contains(r.Values, mac.Name) != (r.Operator == corev1.NodeSelectorOpIn) {
			return false
		}
	}
	return len(t.MatchExpressions)+len(t.MatchFields) > 0
}

func matchesLabels(r *v1alpha1.NodeSelectorRequirement, labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(r.Values, value)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	}
	figure, err := strconv.ParseInt(value, 10, 64)
	bound, no := strconv.ParseInt(r.Values[0], 10, 64)
	if err != nil || no != nil {
		return false
	}
	return r.Operator == corev1.NodeSelectorOpGt && figure > bound || r.Operator == corev1.NodeSelectorOpLt && figure < bound
}
