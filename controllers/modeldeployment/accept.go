package modeldeployment

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// verdict is whether a deployment is accepted, and with which engine.
type verdict struct {
	// condition Accepted.
	condition status.Condition
	// engine is set if the condition is true.
	engine *fleet.Engine
	// names that the deployment owns.
	names []string
	// uninspected: refused because of what the Macs reported of its source.
	uninspected bool
	// crowded: refused for what other deployments take.
	crowded bool
}

// maxNames bounds the names of all deployments of a namespace, alone and with each adapter: every
// gateway lists them.
const maxNames = 5_000

// accept decides on the source and the names of a deployment. Only an accepted one gets
// names: what is refused or waits serves nothing, and would keep a name from a deployment
// that could serve it. While a new spec is refused, an older revision keeps its names.
func accept(s *scope) verdict {
	names, conflicts := fleet.Names(s.deployment, s.holders)
	kept := fleet.Kept(s.deployment, names, len(s.revisions) > 0)
	no := func(condition func(kind, reason, message string) status.Condition, r fleet.Refusal) verdict {
		return verdict{condition: condition(v1alpha1.ConditionAccepted, r.Reason, r.Message), names: kept}
	}
	spec, noProfile := fleet.WithProfile(&s.deployment.Spec, s.profile)
	if refusal := s.oversized(); refusal != nil { // not all holders of its names were read
		refused := no(status.False, *refusal)
		refused.crowded = fleet.Crowded(s.deployment)
		return refused
	}
	if refusal := fleet.InvalidPlacement(&spec.Placement); refusal != nil {
		return no(status.False, *refusal)
	}
	if len(conflicts) > 0 {
		return no(status.False, fleet.Refusal{Reason: v1alpha1.ReasonNameConflict, Message: conflictMessage(conflicts)})
	}
	if n := s.otherNames + len(names); n > maxNames && len(names) > len(s.deployment.Status.ServedNames) {
		refused := no(status.False, fleet.Refusal{Reason: v1alpha1.ReasonSpecTooLarge, Message: fmt.Sprintf("the deployments of the namespace %s would have %d names, alone and with each adapter, at most %d are allowed; "+
			"use fewer spec.servedNames or spec.adapters, or delete deployments there", s.deployment.Namespace, n, maxNames)})
		refused.crowded = true
		return refused
	}
	if r := s.noToken; r != nil {
		if r.Reason == v1alpha1.ReasonSecretForbidden {
			return no(status.Unknown, *r)
		}
		return no(status.False, *r)
	}
	if _, refusal := fleet.PriorityOf(&s.deployment.Spec, s.class); refusal != nil {
		return no(status.False, *refusal)
	}
	if noProfile != nil {
		return no(status.False, *noProfile)
	}
	record, finding := findRecord(s)
	switch {
	case finding.Refusal != nil:
		refused := no(status.False, *finding.Refusal)
		refused.uninspected = true
		return refused
	case record == nil:
		return no(status.Unknown, finding.Waiting)
	}
	if refusal := fleet.OversizedRecord(record); refusal != nil {
		return no(status.False, *refusal)
	}
	engine, refusal := fleet.Resolve(spec, *record)
	if refusal != nil {
		return no(status.False, *refusal)
	}
	return verdict{
		condition: status.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, describe(record)),
		engine:    &engine, names: names,
	}
}

// findRecord prefers the record of an existing revision for this source: once chosen, it is
// not changed by a Mac that reports other bytes under the same name, nor by a branch that
// moved on. One that a Mac alone reported may be superseded, or
// refused once two others are denied the source.
func findRecord(s *scope) (*model.Record, fleet.Finding) {
	have := s.ofSource()
	if have != nil && fleet.Confirmed(have) {
		return have, fleet.Finding{}
	}
	f := s.inspectors.Inspect(s.deployment, s.macs, s.rules)
	if have != nil && !fleet.Superseded(s.deployment, have, f, s.macs) {
		return have, fleet.Finding{}
	}
	return f.Record, f
}

// ofSource returns the record of the newest revision for the source; nil if there is none.
func (s *scope) ofSource() *model.Record {
	for _, r := range slices.Backward(s.revisions) {
		if r.engine.OfSource(&s.deployment.Spec) {
			return &r.engine.Model
		}
	}
	return nil
}

func conflictMessage(conflicts []fleet.NameConflict) string {
	parts := make([]string, 0, len(conflicts))
	for _, c := range conflicts {
		parts = append(parts, fmt.Sprintf("the name %q belongs to the deployment %s/%s", c.Name, c.Owner.Namespace, c.Owner.Name))
	}
	return strings.Join(parts, "; ") + "; choose another name in spec.servedNames, or delete that deployment"
}

func describe(m *model.Record) string {
	kind := m.Facts.Architecture
	if m.Facts.Quantization != "" {
		kind += " " + m.Facts.Quantization
	}
	out := fmt.Sprintf("%s, %s of weights, %s", kind, v1alpha1.FormatBytes(m.Bytes()), m.Digest)
	for i, a := range m.Adapters {
		if i == 0 {
			out += ", adapters "
		} else {
			out += " and "
		}
		out += fmt.Sprintf("%s (%s)", a.Name, v1alpha1.FormatBytes(a.Bytes()))
	}
	if len(m.VouchedBy) > 0 {
		out += ", found by " + strings.Join(m.VouchedBy, ", ")
	}
	return out
}
