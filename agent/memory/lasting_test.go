package memory

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// lasting is an engine that drains for as long as its owner allows its requests.
func lasting(e *EngineReading) {
	busy(e)
	e.Stopping, e.Lasting = true, true
}

// The owner of a model may give its drain a day: pressure is answered meanwhile.
func TestIdleEnginesGoUnderPressureWhileADrainLasts(t *testing.T) {
	wantShort(t, "soft", newPolls().see(0, pinned(72), with(engine("drains", 10, 1), lasting), engine("b", 10, 1), engine("c", 1, 1)), v1alpha1.PressureSoft, "evict b")
	wantShort(t, "hard", newPolls().see(0, pinned(80), with(engine("drains", 10, 1), lasting), engine("b", 6, 1)), v1alpha1.PressureHard, "evict b")
	wantShort(t, "an emergency ends the drain", newPolls().see(0, pinned(88), with(engine("drains", 14, 1), lasting), engine("b", 1, 1)), v1alpha1.PressureEmergency, "")
	asks := with(engine("asks", 60, 0), func(e *EngineReading) { busy(e); e.HeadroomWanted = 20 * gib })
	wantShort(t, "for a prompt", newPolls().see(0, asks, with(engine("drains", 15, 1), lasting), engine("b", 8, 1)), v1alpha1.PressureNormal, "evict b")
	if CanMakeRoom([]EngineReading{with(engine("drains", 15, 1), lasting)}, 0) {
		t.Error("a prompt waits for a drain that lasts")
	}
}

func TestALoadDoesNotWaitForADrainThatLasts(t *testing.T) {
	other := func(e *EngineReading) { e.Namespace = "other" }
	drains := with(with(engine("drains", 50, 1), lasting), other)
	small := func(w *Want) { w.Bytes = 40 * gib }
	for name, tc := range map[string]struct {
		want    func(*Want)
		engines []EngineReading
		victims []Key
		busy    []Key
		pending bool
	}{
		"an idle one is evicted":                 {want: small, engines: []EngineReading{drains, engine("idle", 40, 1)}, victims: []Key{{"idle", 1}}},
		"it waits if nothing else can":           {engines: []EngineReading{drains}, pending: true},
		"and together with an idle one":          {want: func(w *Want) { w.Bytes = 80 * gib }, engines: []EngineReading{with(drains, always), engine("idle", 40, 1)}, pending: true},
		"later the drain is shortened":           {want: func(w *Want) { w.Waits = BusyWait }, engines: []EngineReading{drains}, busy: []Key{{"drains", 1}}},
		"not that of an always-resident replica": {want: func(w *Want) { w.Waits = BusyWait }, engines: []EngineReading{with(drains, always)}, pending: true},
		"not that of the same namespace":         {want: func(w *Want) { w.Waits, w.Namespace = BusyWait, "other" }, engines: []EngineReading{drains}, pending: true},
		"one that ends soon is waited for":       {want: small, engines: []EngineReading{with(drains, func(e *EngineReading) { e.Lasting = false }), engine("idle", 40, 1)}, pending: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := mac(106, 0, tc.engines...)
			w := Want{Key: Key{"new", 1}, Bytes: 60 * gib, Namespace: "mine"}
			if tc.want != nil {
				tc.want(&w)
			}
			short := noRoom(t, ledgerFor(r).Admit(w, r))
			if !slices.Equal(short.Victims, tc.victims) || !slices.Equal(short.Busy, tc.busy) || short.Pending != tc.pending {
				t.Errorf("evicts %v, ends %v, pending %v", short.Victims, short.Busy, short.Pending)
			}
		})
	}
}
