//go:build !race

package history

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

func revision(t *testing.T, owner, name string, number int64) appsv1.ControllerRevision {
	t.Helper()
	spec := v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "hf://o/" + name}}
	text, err := fleet.SpecOf(&spec, nil).Encode()
	if err != nil {
		t.Fatal(err)
	}
	data, err := fleet.Engine{Source: spec.Model.Source, Revision: "v1"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r := appsv1.ControllerRevision{Revision: number}
	r.Name, r.Data.Raw, r.Annotations = name, data, map[string]string{v1alpha1.AnnotationSpec: string(text)}
	r.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner)}}
	return r
}

func TestAnUndoGoesToWhatServed(t *testing.T) {
	all := []appsv1.ControllerRevision{revision(t, "d", "c", 3), revision(t, "d", "a", 1), revision(t, "other", "x", 2), revision(t, "d", "b", 2)}
	bare := revision(t, "d", "bare", 4)
	bare.Annotations = nil
	all = append(all, bare)
	for name, tc := range map[string]struct {
		current, update string
		number          int64
		paused          bool
		to, wrong       string
	}{
		"in the middle of a rollout": {current: "a", update: "c", number: 0, paused: false, to: "a", wrong: ""},
		"after it":                   {current: "c", update: "c", number: 0, paused: false, to: "", wrong: "does not contain its spec"},
		"of the newest":              {current: "bare", update: "bare", number: 0, paused: false, to: "c", wrong: ""},
		"by its number":              {current: "c", update: "c", number: 2, paused: false, to: "b", wrong: ""},
		"one that is not there":      {current: "c", update: "c", number: 7, paused: false, to: "", wrong: "rollout history d"},
		"while it is paused":         {current: "a", update: "c", number: 0, paused: true, to: "", wrong: "resume it first"},
		"what served is pruned":      {current: "pruned", update: "c", number: 0, paused: false, to: "", wrong: "no earlier revision"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &v1alpha1.ModelDeployment{}
			d.Name, d.UID, d.Status.CurrentRevision, d.Status.UpdateRevision, d.Spec.Rollout.Paused = "d", "d", tc.current, tc.update, tc.paused
			d.Spec.Model.Source = "hf://o/now"
			h := Of(d, all, nil)
			if len(h) != 4 || h[0].Name != "a" || h[0].Source != "hf://o/a@v1" {
				t.Fatalf("history %+v", h)
			}
			got, _, err := h.Undo(d, tc.number, nil)
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) || d.Spec.Model.Source != "hf://o/now" {
					t.Errorf("%v and %s, want %q", err, d.Spec.Model.Source, tc.wrong)
				}
				return
			}
			if err != nil || got.Name != tc.to || d.Spec.Model.Source != "hf://o/"+tc.to {
				t.Errorf("went to %s (%s): %v", got.Name, d.Spec.Model.Source, err)
			}
		})
	}
}

func TestAHistorySaysWhatEachRevisionIs(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	d.UID, d.Status.CurrentRevision, d.Status.UpdateRevision = "d", "a", "b"
	replicas := []v1alpha1.ModelReplica{{}, {}}
	for i := range replicas {
		replicas[i].Spec.DeploymentRef.UID, replicas[i].Spec.Revision = "d", "a"
	}
	replicas[1].DeletionTimestamp = &metav1.Time{}
	*replicas[1].DeletionTimestamp = metav1.Now()
	all := []appsv1.ControllerRevision{revision(t, "d", "a", 1), revision(t, "d", "b", 2), revision(t, "d", "c", 3)}
	h := Of(d, all, replicas)
	if h[0].State != "serves" || h[1].State != "wanted" || h[2].State != "" || h[0].Replicas != 1 || h[1].Replicas != 0 {
		t.Errorf("history %+v", h)
	}
	d.Status.Rollout.Halt = &v1alpha1.RolloutHalt{Revision: "b"}
	if h = Of(d, all, nil); h[1].State != "halted" {
		t.Errorf("history %+v", h)
	}
}

// The name of a profile says nothing about what it held: an undo restores what was served.
func TestAnUndoKeepsAProfileThatIsAsItWas(t *testing.T) {
	profile := v1alpha1.ModelProfile{Spec: v1alpha1.ModelProfileSpec{Context: v1alpha1.ContextSpec{MaxTokens: 512}}}
	profile.Name = "p"
	text, err := fleet.SpecOf(&v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: "hf://o/a"}, ProfileName: "p"}, &profile).Encode()
	if err != nil {
		t.Fatal(err)
	}
	old := revision(t, "d", "a", 1)
	old.Annotations[v1alpha1.AnnotationSpec] = string(text)
	changed := *profile.DeepCopy()
	changed.Spec.Context.MaxTokens = 1024
	renamed := *profile.DeepCopy()
	renamed.Name = "q"
	for name, tc := range map[string]struct {
		now    []v1alpha1.ModelProfile
		named  string
		tokens int64
	}{
		"as it was": {now: []v1alpha1.ModelProfile{{}, profile}, named: "p", tokens: 0},
		"changed":   {now: []v1alpha1.ModelProfile{changed}, named: "", tokens: 512},
		"deleted":   {now: nil, named: "", tokens: 512},
		"renamed":   {now: []v1alpha1.ModelProfile{renamed}, named: "", tokens: 512},
	} {
		t.Run(name, func(t *testing.T) {
			d := &v1alpha1.ModelDeployment{}
			d.Name, d.UID, d.Status.CurrentRevision, d.Status.UpdateRevision, d.Spec.Context.MaxTokens = "d", "d", "b", "b", 7
			_, pinned, err := Of(d, []appsv1.ControllerRevision{old, revision(t, "d", "b", 2)}, nil).Undo(d, 0, tc.now)
			if err != nil || pinned == (tc.named != "") || d.Spec.ProfileName != tc.named || d.Spec.Context.MaxTokens != tc.tokens {
				t.Errorf("profile %q, pinned %t, %d tokens (%v), want %q and %d", d.Spec.ProfileName, pinned, d.Spec.Context.MaxTokens, err, tc.named, tc.tokens)
			}
		})
	}
}
