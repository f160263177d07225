package pool

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// reasonEngineGuard of GuardInactive: an engine's own guard cannot act.
const reasonEngineGuard = "EngineGuardInactive"

// memory adds up the Mac's figures; the caller holds mu. Reserved is an
// estimate; ceilings and capacity follow from measured figures; the rest was
// measured by the kernel or counted by the engines.
func (p *pressure) memory() v1alpha1.MacMemory {
	a, d := p.ledger.Account(), &p.decision
	m := v1alpha1.MacMemory{
		TotalBytes: p.meter.host.Total, CeilingBytes: a.Limits.Ceiling, CeilingTerm: v1alpha1.CeilingTerm(a.Limits.Term),
		DynamicCeilingBytes: d.Dynamic, EffectiveCeilingBytes: d.Ceiling, EffectiveCeilingTerm: v1alpha1.CeilingTerm(d.Term),
		PressureLevel: d.Level, CapacityBytes: a.Limits.Capacity, ReservedBytes: a.Reserved,
		ForeignBytes: p.meter.host.Foreign, FreeBytes: p.meter.host.Free, SwapUsedBytes: p.meter.host.SwapUsed, ThermalState: p.meter.host.Thermal,
		StrandedBytes: max(0, p.gate.wired.Bytes),
	}
	for _, e := range p.entries {
		if e.engine == nil || e.engine.state == Exited {
			continue
		}
		s := e.engine.status.GetMemory()
		m.FootprintBytes += e.engine.footprint
		m.ActiveBytes += s.GetActiveBytes()
		m.AccountedBytes += accounted(s)
		m.PooledBytes += s.GetPooledBytes()
	}
	if !p.meter.measuredAt.IsZero() {
		at := metav1.NewTime(p.meter.measuredAt)
		m.MeasuredAt = &at
	}
	return m
}

// macConditions describe the state of this Mac's memory, each with the next
// step; the caller holds mu.
func (p *pressure) macConditions() []metav1.Condition {
	return []metav1.Condition{p.pressureCondition(),
		found(v1alpha1.ConditionWiredStranded, p.gate.wired), found(v1alpha1.ConditionMemoryDiverged, p.diverged), p.guardCondition()}
}

// found returns the condition for a finding; before the first poll it is Unknown.
func found(kind string, f memory.Finding) metav1.Condition {
	return condition(kind, cmp.Or(f.Status, metav1.ConditionUnknown), cmp.Or(f.Reason, v1alpha1.ReasonWaiting), "%s", cmp.Or(f.Message, "not measured yet"))
}

func (p *pressure) pressureCondition() metav1.Condition {
	yes := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionMemoryPressure, metav1.ConditionTrue, reason, "%s", message)
	}
	switch {
	case p.polled.IsZero():
		return condition(v1alpha1.ConditionMemoryPressure, metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "not measured yet")
	case p.decision.Level == v1alpha1.PressureSoft:
		return yes(v1alpha1.ReasonSoftPressure, p.figures+": new prompts wait and idle OnDemand models are unloaded; if this lasts, close other programs or move a model to another Mac")
	case p.decision.Level == v1alpha1.PressureHard:
		return yes(v1alpha1.ReasonHardPressure, p.figures+": idle models are unloaded, then requests are aborted; close other programs, lower a model's context, or move it to another Mac")
	case p.decision.Level == v1alpha1.PressureEmergency:
		return yes(v1alpha1.ReasonEmergency, p.figures+": requests of the worst offender are aborted; lower its context or its cache tokens, or move it to another Mac")
	}
	return condition(v1alpha1.ConditionMemoryPressure, metav1.ConditionFalse, v1alpha1.ReasonBelowSoftMark, "engines use less than the soft mark of the ceiling")
}

// pressureFigures is what was measured when a level was entered: what engines
// hold, what other programs use, and the model that holds most. It stays as it
// is until the level changes, so that the condition does not change with every
// poll. The caller holds mu.
func (p *pressure) pressureFigures(r memory.Reading, d memory.Decision) string {
	s := d.Because
	if r.Host.Foreign > 0 {
		s += fmt.Sprintf("; other programs use %s", v1alpha1.FormatBytes(r.Host.Foreign))
	}
	if len(r.Engines) == 0 {
		return s
	}
	most := slices.MaxFunc(r.Engines, func(a, b memory.EngineReading) int { return cmp.Compare(a.Gauge(), b.Gauge()) })
	if e := p.entries[most.Key]; e != nil && most.Gauge() > 0 {
		s += fmt.Sprintf("; %s/%s holds most, %s", e.assignment.Namespace, e.assignment.Name, v1alpha1.FormatBytes(most.Gauge()))
	}
	return s
}

// limitsPatience is how long an engine may take to answer its limits.
const limitsPatience = 10 * time.Second

func (p *pressure) guardCondition() metav1.Condition {
	yes := func(reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionGuardInactive, metav1.ConditionTrue, reason, format, args...)
	}
	if p.polled.IsZero() {
		return condition(v1alpha1.ConditionGuardInactive, metav1.ConditionUnknown, v1alpha1.ReasonWaiting, "not measured yet")
	}
	if why := p.decision.GuardInactive; why != "" {
		return yes(v1alpha1.ReasonProbeFails, "%s; nothing is evicted or refused based on measurements until this works again: see the agent's log", why)
	}
	if why := p.decision.Assumed; why != "" {
		return yes(v1alpha1.ReasonProbeFails, "%s; the guard acts for the others: see the agent's log", why)
	}
	if p.recorder.unsaved != "" {
		return yes(reasonStateNotSaved, "the agent's journal cannot be written (%s): engines are unloaded as before, but none is started, and what has ended is reported later; free disk space on this Mac", p.recorder.unsaved)
	}
	var worst *engine // a fixed one, so that the message does not change from poll to poll
	reason, why := "", ""
	for _, e := range p.entries {
		g := e.engine
		if g == nil || g.state != Ready || worst != nil && byKey(worst.key, g.key) < 0 {
			continue
		}
		guard := g.status.GetGuard()
		switch late := !g.limitsSentAt.IsZero() && p.polled.Sub(g.limitsSentAt) > limitsPatience; {
		case late || g.limitsRefused:
			worst, reason, why = g, v1alpha1.ReasonLimitsNotTaken, "it does not acknowledge its limits; if this lasts, restart it"
		case guard.GetLimitsSequence() > 0 && !guard.GetActive():
			worst, reason, why = g, reasonEngineGuard, guard.GetInactiveReason()
		}
	}
	if worst != nil {
		return yes(reason, "the engine of replica %s, epoch %d, has no active memory guard: %s", worst.key.UID, worst.key.Epoch, why) // Events of the Mac repeat it
	}
	return condition(v1alpha1.ConditionGuardInactive, metav1.ConditionFalse, v1alpha1.ReasonGuardsActive, "all engines have received and acknowledged their limits")
}
