package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// script schedules what people and accidents do, at random times.
func (w *world) script() {
	length := w.end.Sub(epoch)
	at := func(from, to float64) time.Duration {
		return time.Duration((from + w.rng.Float64()*(to-from)) * float64(length))
	}
	for i := range w.o.deployments {
		w.in(at(0, 0.5), func() { w.apply(i) })
	}
	for range w.o.deployments / 2 {
		w.in(at(0.2, 0.9), w.edit)
	}
	for range max(1, w.o.macs/40) {
		w.in(at(0.1, 0.9), func() { w.kill(w.macs[w.rng.IntN(len(w.macs))], time.Duration(w.rng.IntN(1200))*time.Second) })
	}
	for range max(1, w.o.macs/40) {
		w.in(at(0.1, 0.9), func() {
			m := w.macs[w.rng.IntN(len(w.macs))]
			m.node.Spec.Unschedulable = !m.node.Spec.Unschedulable
			w.evictFrom(m)
			w.due()
		})
	}
	taints := rand.New(rand.NewPCG(w.o.seed, 79)) // chance of its own, so that taints move nothing else
	for range max(1, w.o.macs/10) {
		when := time.Duration((0.1 + 0.7*taints.Float64()) * float64(length))
		m, d := w.macs[taints.IntN(len(w.macs))], time.Duration(1+taints.IntN(15))*time.Minute
		w.in(when, func() { w.taint(m, d) })
	}
	// One cut of the network: most Macs vanish within some seconds, for ten minutes.
	w.in(at(0.55, 0.65), func() {
		w.logf("a switch fails")
		for _, m := range w.macs {
			if w.rng.IntN(100) < 70 {
				w.in(time.Duration(w.rng.IntN(20))*time.Second, func() { w.kill(m, 10*time.Minute) })
			}
		}
	})
}

// evictFrom is what a person who drains a cordoned Mac does, and ends when it is uncordoned.
func (w *world) evictFrom(m *mac) {
	for _, r := range w.replicas {
		if r.Spec.NodeName != m.node.Name || r.gone {
			continue
		}
		delete(r.Annotations, v1alpha1.AnnotationEvict)
		if m.node.Spec.Unschedulable {
			metav1.SetMetaDataAnnotation(&r.ObjectMeta, v1alpha1.AnnotationEvict, "true")
			w.counts["replicas that are evicted"]++
		}
	}
}

// kill has a Mac vanish, and come back after a while.
func (w *world) kill(m *mac, back time.Duration) {
	if !m.alive {
		return
	}
	w.beats(m)
	m.alive, m.died = false, w.now
	clear(m.loaded)
	w.counts["Macs that vanish"]++
	w.checks.lights()
	w.in(back, func() {
		w.beats(m)
		m.alive, m.renewed = true, w.now
		w.checks.lights()
		w.due()
	})
}

// apply makes a deployment.
func (w *world) apply(i int) {
	d := &deployment{}
	d.Namespace, d.Name, d.UID = fmt.Sprintf("team-%d", i%8), fmt.Sprintf("model-%04d", i), types.UID(fmt.Sprintf("deployment-%04d", i))
	d.CreationTimestamp = metav1.NewTime(w.now)
	weights := int64(1+w.rng.IntN(40)) * gib
	d.Spec.Model.Source = fmt.Sprintf("hf://org/model-%04d", i)
	d.record = record(d.Spec.Model.Source, i, weights)
	n := int32(1 + w.rng.IntN(8))
	d.Spec.Replicas = &n
	d.tolerated = tolerated(i)
	tolerates(&d.Spec.Placement, d.tolerated)
	d.Spec.Context = v1alpha1.ContextSpec{MaxTokens: 4096, MaxConcurrentRequests: 4, KVCacheTokens: 8192}
	switch i % 5 {
	case 0:
		d.Spec.Residency.Policy = v1alpha1.ResidencyOnDemand
	case 1:
		d.Spec.Placement.TopologySpreadConstraints = []v1alpha1.TopologySpreadConstraint{{TopologyKey: "example.com/room", MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule}}
	case 2:
		d.Spec.Placement.Strategy = v1alpha1.PlacementBinPack
	case 3:
		d.priority = v1alpha1.Priority{ClassName: "high", Value: 1000}
	case 4:
		w.scales(d, i)
	}
	w.deployments = append(w.deployments, d)
	w.logf("%s/%s is applied: %d replicas of %d GiB of weights, priority %d", d.Namespace, d.Name, fleet.Wanted(&d.ModelDeployment), weights/gib, d.priority.Value)
	w.due()
}

// edit changes the scale or the engine of a deployment.
func (w *world) edit() {
	if len(w.deployments) == 0 {
		return
	}
	d := w.deployments[w.rng.IntN(len(w.deployments))]
	if w.rng.IntN(2) == 0 {
		n := int32(w.rng.IntN(10))
		if a := d.Spec.Autoscaling; a != nil {
			w.logf("%s/%s may scale to %d", d.Namespace, d.Name, max(1, n))
			a.MaxReplicas = max(1, n)
			return
		}
		w.logf("%s/%s is scaled from %d to %d", d.Namespace, d.Name, *d.Spec.Replicas, n)
		d.Spec.Replicas = &n
	} else {
		w.another(d, w.rng.IntN(3) == 0)
	}
	w.due()
}

// another gives a deployment another engine; one that is spoilt generates no
// token, and a person corrects it later. Every other one has weights of its own.
// Some are paused for a while.
func (w *world) another(d *deployment, spoilt bool) {
	d.Spec.Context.KVCacheTokens += 4096
	if d.Spec.Context.KVCacheTokens/4096%2 == 1 {
		d.record = record(d.Spec.Model.Source, 1_000_000+int(w.born), d.record.Bytes())
	}
	d.outcome, d.spoilt = nil, spoilt
	w.logf("%s/%s gets another engine (spoilt: %v)", d.Namespace, d.Name, spoilt)
	if spoilt {
		w.in(time.Duration(10+w.rng.IntN(30))*time.Minute, func() {
			if d.spoilt {
				w.another(d, false)
				w.due()
			}
		})
	}
	if w.rng.IntN(4) == 0 {
		w.in(time.Duration(w.rng.IntN(60))*time.Second, func() { w.pause(d, true) })
		w.in(time.Duration(5+w.rng.IntN(10))*time.Minute, func() { w.pause(d, false) })
	}
}

// pause pauses or resumes the rollout of a deployment.
func (w *world) pause(d *deployment, paused bool) {
	d.Spec.Rollout.Paused = paused
	w.logf("%s/%s is paused: %v", d.Namespace, d.Name, paused)
	w.due()
}

// record is a model with that many bytes of weights and the dimensions of a small Llama.
func record(source string, i int, weights int64) model.Record {
	r := model.Record{Source: source, Format: model.FormatGGUF, VouchedBy: []string{model.VoucherPreview},
		Files: []model.File{{Path: "model.gguf", Bytes: weights, SHA256: fmt.Sprintf("%064x", i+1)}},
		Facts: model.Facts{
			Architecture: "llama", Quantization: "Q4_1", Layers: 32, GrowingLayers: 32, HiddenSize: 4096, FeedForwardSize: 14336,
			QueryHeads: 32, KeyValueHeads: 8, HeadSize: 128, VocabularySize: 128256, ContextTokens: 8192, KeyValueElementBytes: 2, WeightBytes: weights,
		}}
	r.Digest = model.DigestOf(r.Files)
	return r
}
