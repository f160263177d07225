//go:build !race

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/agent/report"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// TestAMacMayReportAllThatItInspects: a status that a policy refuses for its size is not written
// at all, so that nothing of that Mac is known any more.
func TestAMacMayReportAllThatItInspects(t *testing.T) {
	write := reporting(t)
	hash := strings.Repeat("b", 64)
	adapters := func(n int) (all []model.Adapter) {
		for i := range n {
			all = append(all, model.Adapter{Name: fmt.Sprint("a", i), Source: "hf://o/a", Commit: strings.Repeat("c", 40), Digest: "sha256:" + hash, Files: []model.File{
				{Path: "adapter_config.json", Bytes: 700, SHA256: hash}, {Path: "adapter_model.safetensors", Bytes: 1 << 20, SHA256: hash}}})
		}
		return all
	}
	paths := func(of string, n, length int) (all []model.File) {
		for i := range n {
			all = append(all, model.File{Path: fmt.Sprintf("%03d", i) + strings.Repeat(of, length), Bytes: 1 << 40, SHA256: hash})
		}
		return all
	}
	for name, r := range map[string]model.Record{
		"adapters":        {Files: paths("f", 1, 10), Adapters: adapters(16)},
		"short paths":     {Files: paths("f", 20, 1)},
		"long paths":      {Files: paths("f", 10, 500)},
		"quotes in paths": {Files: paths(`"`, 5, 500)},
		"signs in paths":  {Files: paths("<", 5, 500)},
		"long characters": {Files: paths("😀", 10, 120)},
	} {
		t.Run(name, func(t *testing.T) {
			r.Source, r.Format, r.Digest, r.Facts.Architecture = "hf://org/m", model.FormatSafetensors, "sha256:"+hash, "llama"
			if err := tooLarge(r); err != nil {
				t.Fatal(err)
			}
			for _, inspections := range []int{24, 64} {
				i := &Inspector{jobs: map[string]*job{}}
				for n := range inspections {
					id := fmt.Sprintf("%064d", n)
					i.jobs[id] = &job{order: v1alpha1.Inspection{ID: id, Namespace: "tenant"}, status: v1alpha1.InspectionStatus{ID: id, Source: r.Source, State: v1alpha1.InspectionResolved, Model: &r}}
				}
				all := i.Snapshot()
				resolved := 0
				for _, s := range all {
					if s.State == v1alpha1.InspectionResolved {
						resolved++
					}
				}
				if err := write(v1alpha1.MacNodeStatus{Inspections: all}); err != nil || resolved == 0 {
					t.Errorf("%d of %d inspections with their results: %.300v", resolved, len(all), err)
				}
			}
		})
	}
	t.Run("texts", func(t *testing.T) {
		if err := write(longestTexts()); err != nil {
			t.Errorf("%.300v", err)
		}
	})
}

// longestTexts has inspections, weights and assignments with long texts. The messages of assignments
// have a bound of their own, and each sign of a query takes six bytes as JSON.
func longestTexts() v1alpha1.MacNodeStatus {
	signs := func(n int) string { return strings.Repeat("&", n) }
	i := &Inspector{jobs: map[string]*job{}}
	for n := range 64 {
		s := v1alpha1.InspectionStatus{ID: fmt.Sprintf("%064d", n), Source: "hf://org/model", State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonInvalidModel, Message: "no model"}
		if n < 21 { // more do not fit into the orders of a Mac
			s.Source, s.Message = "https://a.example/?"+signs(1000), signs(1000)
		}
		i.jobs[s.ID] = &job{order: v1alpha1.Inspection{ID: s.ID, Namespace: "tenant"}, status: s}
	}
	status := v1alpha1.MacNodeStatus{Inspections: i.Snapshot()}
	for range 8 {
		status.Disk.Collected.Last = append(status.Disk.Collected.Last, v1alpha1.Collection{Source: "https://a.example/?" + signs(1000), Reason: v1alpha1.CollectedForMark, Time: metav1.Now()})
	}
	for n := range 64 {
		message := signs(report.MaxTextBytes / 64 / 6)
		status.Assignments = append(status.Assignments, v1alpha1.AssignmentStatus{ReplicaUID: fmt.Sprint(n), Epoch: 1, Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionLoaded, Status: metav1.ConditionFalse, Reason: "Failed", Message: message, LastTransitionTime: metav1.Now()}}})
	}
	return status
}

// holdAgents creates the admission policies of agents.
func holdAgents(t *testing.T, root client.Client) {
	t.Helper()
	dir, err := testenv.RBACDir()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "agents.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := errors.Join(yaml.Unmarshal([]byte(doc), &o.Object), root.Create(t.Context(), o)); err != nil {
			t.Fatal(err)
		}
	}
}

// reporting returns a function that writes the status of a Mac as its agent, under the policies.
func reporting(t *testing.T) func(v1alpha1.MacNodeStatus) error {
	t.Helper()
	env, err := testenv.Start(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	root, err := client.New(env.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	holdAgents(t, root)
	if err := root.Create(t.Context(), &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio"}}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(env.Config())
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:metalfleet-system:mac-studio", Groups: []string{"system:masters"}}
	agent, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, s v1alpha1.MacNodeStatus, manager string) error {
		b, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "MacNode", "status": s})
		if err != nil {
			return err
		}
		return agent.Status().Patch(ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio"}}, client.RawPatch(types.ApplyPatchType, b), client.FieldOwner(manager), client.ForceOwnership)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	for { // until the policy is in force
		err := write(ctx, v1alpha1.MacNodeStatus{Chip: "x"}, "another")
		if err != nil && strings.Contains(err.Error(), "metalfleet-agent-size") {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	return func(s v1alpha1.MacNodeStatus) error { return write(t.Context(), s, v1alpha1.ManagerAgent) }
}
