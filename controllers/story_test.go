package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

func TestManifestBecomesServedModel(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(12*gib))
	w.mac("mac-2", holding(60*gib))
	w.looked()
	start := time.Now()
	w.deploy("smollm2", func(s *v1alpha1.ModelDeploymentSpec) { s.ServedNames = []string{"smollm2-135m"} })
	d := w.deployment("smollm2", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	t.Logf("apply to Ready, without engines: %s", time.Since(start).Round(time.Millisecond))

	for kind, reason := range map[string]string{
		v1alpha1.ConditionAccepted: v1alpha1.ReasonAccepted, v1alpha1.ConditionFits: v1alpha1.ReasonFits, v1alpha1.ConditionPlaced: v1alpha1.ReasonPlaced,
		v1alpha1.ConditionDownloaded: v1alpha1.ReasonVerified, v1alpha1.ConditionProgressing: v1alpha1.ReasonStable, v1alpha1.ConditionDegraded: v1alpha1.ReasonStable,
	} {
		if err := wantReason(d.Status.Conditions, kind, reason); err != nil {
			t.Error(err)
		}
	}
	if d.Status.Summary.Ready != "1/1" || d.Status.Summary.Memory != "152.3 MiB" || d.Status.ModelDigest != small.Digest {
		t.Errorf("status: %+v", d.Status)
	}
	if want := []string{"smollm2-135m", w.ns + "/smollm2"}; !slices.Equal(d.Status.ServedNames, want) {
		t.Errorf("served names %v, want %v", d.Status.ServedNames, want)
	}
	r := w.replicas("smollm2")[0]
	if r.Spec.NodeName != "mac-2" {
		t.Errorf("placed on %s, want the Mac with the larger free share, mac-2", r.Spec.NodeName)
	}
	if r.Spec.Context != (v1alpha1.ContextLimits{MaxTokens: 8192, MaxConcurrentRequests: 4, KVCacheTokens: 16384}) || r.Spec.ReservedBytes <= small.Bytes() {
		t.Errorf("resolved context %+v, reserved %d", r.Spec.Context, r.Spec.ReservedBytes)
	}
	if a := w.assigned("mac-2"); len(a.Assignments) != 1 || a.Assignments[0].ReplicaUID != string(r.UID) || !slices.Equal(a.Assignments[0].ServedNames, d.Status.ServedNames) {
		t.Errorf("assigned: %+v", a.Assignments)
	}
	for _, a := range w.macs {
		if err := a.Failure(); err != nil {
			t.Errorf("agent %s: %v", a.Name, err)
		}
	}
}

func TestNameConflictNamesTheOwner(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	first := w.deploy("first", func(s *v1alpha1.ModelDeploymentSpec) { s.ServedNames = []string{"chat"} })
	w.deployment("first", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deploy("second", func(s *v1alpha1.ModelDeploymentSpec) { s.ServedNames = []string{"chat", "talk"} })
	d := w.deployment("second", v1alpha1.ConditionAccepted, v1alpha1.ReasonNameConflict)
	wantContains(t, "Accepted", message(d.Status.Conditions, v1alpha1.ConditionAccepted), `"chat"`, w.ns+"/first")
	if want := []string{w.ns + "/second"}; !slices.Equal(d.Status.ServedNames, want) {
		t.Errorf("a refused deployment has the names %v, want %v", d.Status.ServedNames, want)
	}
	if n := len(w.replicas("second")); n != 0 {
		t.Errorf("%d replicas of a deployment that is not accepted", n)
	}
	w.must(w.c.Delete(w.ctx, first))
	w.deployment("second", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
}

// TestARefusedDeploymentHoldsNoName: the older deployment cannot serve, so its claim does
// not keep the younger one from serving. Once it can, the name is taken.
func TestARefusedDeploymentHoldsNoName(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("broken", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model.Source, s.ServedNames = "file://missing.gguf", []string{"Org/Held-8B", "spare"}
	})
	d := w.deployment("broken", v1alpha1.ConditionAccepted, v1alpha1.ReasonSourceNotFound)
	if want := []string{w.ns + "/broken"}; !slices.Equal(d.Status.ServedNames, want) {
		t.Errorf("a refused deployment has the names %v, want %v", d.Status.ServedNames, want)
	}
	w.deploy("works", func(s *v1alpha1.ModelDeploymentSpec) { s.ServedNames = []string{"Org/Held-8B"} })
	d = w.deployment("works", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	served := []string{"Org/Held-8B", w.ns + "/works"}
	if !slices.Equal(d.Status.ServedNames, served) {
		t.Errorf("served names %v, want %v", d.Status.ServedNames, served)
	}
	w.edit("broken", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = source })
	d = w.deployment("broken", v1alpha1.ConditionAccepted, v1alpha1.ReasonNameConflict)
	wantContains(t, "Accepted", message(d.Status.Conditions, v1alpha1.ConditionAccepted), `"Org/Held-8B"`, w.ns+"/works")

	// A refused change keeps the names of the revision that serves, and takes no new one.
	w.edit("works", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model.Source, s.ServedNames = "file://missing.gguf", []string{"Org/Held-8B", "spare"}
	})
	d = w.deployment("works", v1alpha1.ConditionAccepted, v1alpha1.ReasonSourceNotFound)
	if !slices.Equal(d.Status.ServedNames, served) {
		t.Errorf("a refused change leaves the names %v, want %v", d.Status.ServedNames, served)
	}
}

// TestASourceOfFieldsServes: both forms of a source are the same revision.
func TestASourceOfFieldsServes(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("fields", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model = v1alpha1.ModelSource{Local: &v1alpha1.LocalSource{Path: strings.TrimPrefix(source, "file://")}}
	})
	d := w.deployment("fields", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if want := (v1alpha1.ContextLimits{MaxTokens: 8192, MaxConcurrentRequests: 4, KVCacheTokens: 16384}); d.Status.ModelSource != source ||
		d.Status.Context == nil || *d.Status.Context != want {
		t.Errorf("the status has the source %q and the limits %+v, want %q and %+v", d.Status.ModelSource, d.Status.Context, source, want)
	}
	revision := d.Status.UpdateRevision
	w.edit("fields", func(s *v1alpha1.ModelDeploymentSpec) { s.Model = v1alpha1.ModelSource{Source: source} })
	w.eventually("the change is observed", func() error {
		if d = w.get("fields"); d.Status.ObservedGeneration != d.Generation {
			return errors.New("not yet")
		}
		return nil
	})
	if d.Status.UpdateRevision != revision || len(w.replicas("fields")) != 1 {
		t.Errorf("the URL of the same source made the revision %s of %s", d.Status.UpdateRevision, revision)
	}
}

// It follows deployments that are created and deleted.
func TestRoutingSaysWhoIsMissing(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("stable", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Routing = v1alpha1.RoutingSpec{Split: []v1alpha1.RoutingShare{{Deployment: "canary", Percent: 10}}, Fallbacks: []string{"small"}}
	})
	d := w.deployment("stable", v1alpha1.ConditionRouted, v1alpha1.ReasonTargetNotFound)
	wantContains(t, "Routed", message(d.Status.Conditions, v1alpha1.ConditionRouted), "canary, small")
	revision := w.deployment("stable", v1alpha1.ConditionReady, v1alpha1.ReasonReady).Status.CurrentRevision
	canary := w.deploy("canary", func(*v1alpha1.ModelDeploymentSpec) {})
	w.deploy("small", func(*v1alpha1.ModelDeploymentSpec) {})
	w.deployment("stable", v1alpha1.ConditionRouted, v1alpha1.ReasonTargetsFound)
	w.must(w.c.Delete(w.ctx, canary))
	d = w.deployment("stable", v1alpha1.ConditionRouted, v1alpha1.ReasonTargetNotFound)
	wantContains(t, "Routed", message(d.Status.Conditions, v1alpha1.ConditionRouted), "canary")
	w.must(w.c.Patch(w.ctx, d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"routing":null}}`))))
	w.eventually("nothing is routed", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation || meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionRouted) != nil {
			return errors.New("not yet")
		}
		return nil
	})
	if d.Status.CurrentRevision != revision {
		t.Errorf("a change of routing made the revision %s of %s", d.Status.CurrentRevision, revision)
	}
}

func TestSourceProblemsAreReasons(t *testing.T) {
	w := newWorld(t)
	bad := holding(60 * gib)
	bad.Sources["file://bad.gguf"] = fleettest.Source{Reason: v1alpha1.ReasonInvalidModel, Message: "bad.gguf ends in the middle of tensor 7"}
	w.mac("mac-1", bad)
	w.mac("mac-2", holding(60*gib))

	w.deploy("missing", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://missing.gguf" })
	w.deploy("bad", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://bad.gguf" })
	w.deploy("other", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Model.SHA256 = "00000000000000000000000000000000000000000000000000000000000000ff"
	})
	w.deploy("long", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 8193 })
	w.deploy("tight", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("1Mi") })

	d := w.deployment("missing", v1alpha1.ConditionAccepted, v1alpha1.ReasonSourceNotFound)
	wantContains(t, "missing", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "mac-1: no such file", "failed on 2 Macs")
	d = w.deployment("bad", v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidModel)
	wantContains(t, "bad", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "mac-1", "tensor 7")
	w.deployment("other", v1alpha1.ConditionAccepted, v1alpha1.ReasonDigestMismatch)
	d = w.deployment("long", v1alpha1.ConditionAccepted, v1alpha1.ReasonContextTooLong)
	wantContains(t, "long", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "8193", "8192")
	d = w.deployment("tight", v1alpha1.ConditionAccepted, v1alpha1.ReasonLimitTooSmall)
	wantContains(t, "tight", message(d.Status.Conditions, v1alpha1.ConditionAccepted), "1048576 bytes")

	// The file appears on one Mac: the same deployment continues without a change.
	good := fleettest.Model("file://missing.gguf", "found", 98_000_000)
	w.play(w.macs[1], func(s *fleettest.Script) { s.Sources["file://missing.gguf"] = fleettest.Source{Model: &good} })
	w.deployment("missing", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if r := w.replicas("missing")[0]; r.Spec.NodeName != "mac-2" {
		t.Errorf("placed on %s, but only mac-2 has the file", r.Spec.NodeName)
	}
}

func TestTooLargeForEveryMac(t *testing.T) {
	w := newWorld(t)
	huge := fleettest.Model("file://huge.gguf", "huge", 100*gib)
	for name, capacity := range map[string]int64{"mac-1": 12 * gib, "mac-2": 60 * gib} {
		s := holding(capacity)
		s.Sources["file://huge.gguf"] = fleettest.Source{Model: &huge}
		w.mac(name, s)
	}
	w.deploy("huge", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://huge.gguf" })
	d := w.deployment("huge", v1alpha1.ConditionFits, v1alpha1.ReasonTooLarge)
	wantContains(t, "Fits", message(d.Status.Conditions, v1alpha1.ConditionFits),
		"2 Macs: 2 too small even if empty", "mac-1 can reserve 12.0 GiB", "mac-2 can reserve 60.0 GiB")
	if meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionFits) {
		t.Error("Fits is true")
	}
}

// Elsewhere admission judged each model alone: five models of 36 GiB were admitted on a Mac
// of 64 GiB.
func TestReservationsAreCumulative(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(64*gib))
	for i := range 5 {
		w.deploy(fmt.Sprintf("big-%d", i), func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("36Gi") })
	}
	placed := 0
	w.eventually("each deployment is judged", func() error {
		placed = 0
		for i := range 5 {
			c := meta.FindStatusCondition(w.get(fmt.Sprintf("big-%d", i)).Status.Conditions, v1alpha1.ConditionPlaced)
			switch {
			case c == nil || c.Reason == v1alpha1.ReasonPending:
				return fmt.Errorf("big-%d is not", i)
			case c.Status == "True":
				placed++
			case c.Reason != v1alpha1.ReasonNoRoom:
				return fmt.Errorf("big-%d: %s (%s)", i, c.Reason, c.Message)
			default:
				wantContains(t, "Placed", c.Message, "1 short of memory (need 36.0 GiB, largest free 28.0 GiB)")
			}
		}
		return nil
	})
	if placed != 1 {
		t.Errorf("%d replicas of 36 GiB on a Mac of 64 GiB, want 1", placed)
	}
}

func TestScaleDownCountsFreedBytesOnce(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.mac("mac-2", holding(60*gib))
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	on := map[string]bool{}
	for _, r := range w.replicas("small") {
		on[r.Spec.NodeName] = true
	}
	if len(on) != 2 {
		t.Errorf("two replicas on %v, want one on each Mac", on)
	}
	const footprint = 159744000
	for want := int64(1); want <= 2; want++ {
		w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To(int32(2 - want)) })
		w.eventually("the replica is gone and counted", func() error {
			d := w.get("small")
			if n := len(w.replicas("small")); n != int(2-want) || len(d.Status.Accounted) != 0 {
				return fmt.Errorf("%d replicas are left, %d accounted", n, len(d.Status.Accounted))
			}
			if d.Status.FreedBytesTotal != want*footprint || d.Status.RetiredFreedBytes != want*footprint {
				return fmt.Errorf("freed %d, retired %d, want %d", d.Status.FreedBytesTotal, d.Status.RetiredFreedBytes, want*footprint)
			}
			return nil
		})
	}
	if err := wantReason(w.get("small").Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonScaledToZero); err != nil {
		t.Error(err)
	}
	w.wantReclaimEvents(2)
}

func TestRefusedReplicaMovesElsewhere(t *testing.T) {
	w := newWorld(t)
	refuse := holding(100 * gib)
	refuse.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.Refuse }
	w.mac("mac-1", refuse)
	w.mac("mac-2", holding(60*gib))
	w.looked()
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.eventually("only the successor is left", func() error {
		r, err := alone(w.replicas("small"))
		if err != nil {
			return err
		}
		if r.Spec.NodeName != "mac-2" || r.Spec.Epoch != 2 {
			return errors.New(brief(r))
		}
		if a := r.Spec.Avoid; len(a) != 1 || a[0].Name != "mac-1" || a[0].Until.Sub(w.clock.Now()) > 601*time.Second {
			return fmt.Errorf("avoids %v", a)
		}
		return nil
	})
}

func TestChangeRollsOutByRevision(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	d := w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	first := d.Status.CurrentRevision
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 512 })
	w.eventually("both replicas have the new revision", func() error {
		d := w.get("small")
		rs := w.replicas("small")
		if d.Status.CurrentRevision == first || d.Status.ReadyReplicas != 2 || d.Status.UpdatedReplicas != 2 || len(rs) != 2 {
			return fmt.Errorf("%s, %d replicas", brief(d), len(rs))
		}
		for _, r := range rs {
			if r.Spec.Context.MaxTokens != 512 {
				return errors.New("a replica has the old context")
			}
		}
		return nil
	})
	// Back to the earlier spec: its revision is the newest again.
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 0 })
	w.eventually("the first revision is back", func() error {
		d := w.get("small")
		if d.Status.CurrentRevision != first || d.Status.ReadyReplicas != 2 || d.Status.UpdatedReplicas != 2 || len(w.replicas("small")) != 2 {
			return errors.New(brief(d))
		}
		return nil
	})
	var revisions appsv1.ControllerRevisionList
	w.must(w.c.List(w.ctx, &revisions, client.InNamespace(w.ns)))
	if len(revisions.Items) != 2 {
		t.Errorf("%d revisions, want 2", len(revisions.Items))
	}
	// Placement and drain time are not part of the engine: nothing is replaced.
	before := uids(w.replicas("small"))
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.DrainSeconds = ptr.To[int32](7) })
	w.eventually("replicas follow", func() error {
		for _, r := range w.replicas("small") {
			if r.Spec.DrainSeconds != 7 {
				return errors.New("not yet")
			}
		}
		return nil
	})
	if after := uids(w.replicas("small")); !slices.Equal(before, after) {
		t.Errorf("replicas %v became %v", before, after)
	}
}

func uids(rs []v1alpha1.ModelReplica) []string {
	var out []string
	for _, r := range rs {
		out = append(out, string(r.UID))
	}
	slices.Sort(out)
	return out
}
