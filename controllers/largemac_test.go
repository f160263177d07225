//go:build !race

package controllers_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
)

// large is a status with every list full, with about this number of characters in its paths
// and messages: those of the string in turn.
func large(of string, paths, messages int) v1alpha1.MacNodeStatus {
	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	zeros := func(n int) string { return strings.Repeat("0", n) }
	filled := func(n int) string { return string(slices.Repeat([]rune(of), n)[:n]) }
	s := v1alpha1.MacNodeStatus{AgentVersion: zeros(64), BootID: zeros(64), Chip: zeros(32)}
	for i := range 256 {
		s.Weights = append(s.Weights, v1alpha1.StoredWeights{Digest: fmt.Sprintf("sha256:%064d", i), Bytes: 1 << 50, ReclaimableBytes: 1 << 50})
	}
	each := messages / (128 * 6)
	for i := range 128 {
		a := v1alpha1.AssignmentStatus{ReplicaUID: fmt.Sprintf("%064d", i), Epoch: 1 << 50, PID: 1 << 20, Restarts: 1 << 20,
			LastFailure: &v1alpha1.EngineFailure{Reason: "EngineCrashed", Message: filled(each), Time: now},
			Activity:    &v1alpha1.EngineActivity{Running: 1 << 40, Queued: 1 << 40, PromptTokensTotal: 1 << 50, GeneratedTokensTotal: 1 << 50, CacheBytes: 1 << 50},
			Memory: v1alpha1.EngineMemory{ReservedBytes: 1 << 50, LimitBytes: 1 << 50, FootprintBytes: 1 << 50, WeightsBytes: 1 << 50,
				ActiveBytes: 1 << 50, PooledBytes: 1 << 50, AccountedBytes: 1 << 50, MeasuredAt: &now}}
		for _, stage := range []string{"Downloaded", "Admitted", "Loaded", "Serving", "Released"} {
			a.Conditions = append(a.Conditions, metav1.Condition{Type: stage, Status: metav1.ConditionFalse, Reason: "Reason", Message: filled(each), LastTransitionTime: now, ObservedGeneration: 1 << 50})
		}
		s.Assignments = append(s.Assignments, a)
	}
	facts := model.Facts{Architecture: "llama", Task: model.Embed, Quantization: "Q4", Name: "n"}
	for _, f := range reflect.ValueOf(&facts).Elem().Fields() {
		if f.Kind() == reflect.Int64 {
			f.SetInt(1 << 50)
		}
	}
	for i := range 64 {
		in := v1alpha1.InspectionStatus{ID: fmt.Sprintf("%064d", i), Source: "hf://a/b", State: v1alpha1.InspectionResolved,
			Model: &model.Record{Source: "hf://a/b", Format: model.FormatSafetensors, Digest: "sha256:" + zeros(64), Facts: facts}}
		for k := 0; k == 0 || k < 256 && paths > 0; k++ {
			n := min(500, paths)
			paths -= n
			in.Model.Files = append(in.Model.Files, model.File{Path: fmt.Sprintf("%03d", k) + filled(n), Bytes: 1 << 50, SHA256: zeros(64)})
		}
		s.Inspections = append(s.Inspections, in)
	}
	return s
}

// TestAttackAMacNodeThatIsTooLargeToChange: a Mac that was taken over fills the status of its
// MacNode up to what etcd stores, so that nothing can be added to it, which its deletion and
// the report of its silence do. A character takes up to six bytes there, and seven more in a key.
func TestAttackAMacNodeThatIsTooLargeToChange(t *testing.T) {
	const etcd, room, pathRoom, textRoom = 1_572_864, 200_000, 409_600, 458_752
	w := newWorld(t)
	evil := w.mac("mac-evil", holding(60*gib))
	w.eventually("it reports", func() error { return w.macCondition("mac-evil", v1alpha1.ReasonReporting) })
	evil.Stop()
	write := w.writerAs("mac-evil")
	w.stop()                           // it would read each of them
	type size struct{ text, path int } // of each character in a text, and in a path with its key
	var worst v1alpha1.MacNodeStatus
	most := 0
	for of, each := range map[string]size{"0": {1, 3}, "<>&\x01": {6, 15}, "\u2028": {8, 21}, `"\`: {2, 9}, "😀": {4, 12}} {
		t.Run(strconv.Quote(of), func(t *testing.T) {
			paths := pathRoom * 9 / 10 / (each.path + 1) // 250 bytes for each file of 500
			texts := textRoom * 98 / 100 / each.text
			if err := write(large(of, paths*13/10, 0), v1alpha1.ManagerAgent); err == nil || !strings.Contains(err.Error(), "400 KiB of files") {
				t.Errorf("paths of %d characters: %v", paths*13/10, err)
			}
			if err := write(large(of, 0, texts*12/10), v1alpha1.ManagerAgent); err == nil || !strings.Contains(err.Error(), "448 KiB") {
				t.Errorf("messages of %d characters: %v", texts*12/10, err)
			}
			s := large(of, paths, texts)
			w.must(write(s, v1alpha1.ManagerAgent))
			var mac v1alpha1.MacNode
			w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, &mac))
			b, err := json.Marshal(mac)
			if w.must(err); len(b) > etcd-room {
				t.Errorf("the MacNode has %d bytes", len(b))
			}
			if len(b) > most {
				most, worst = len(b), s
			}
		})
	}
	if err := write(large("0", 0, 0), "other"); err == nil || !strings.Contains(err.Error(), "field manager") {
		t.Error(err)
	}
	odd := large("0", 0, 0)
	odd.Weights[0].Digest = "sha256:<"
	if err := write(odd, v1alpha1.ManagerAgent); err == nil || !strings.Contains(err.Error(), "are ASCII") {
		t.Error(err)
	}
	w.must(write(worst, v1alpha1.ManagerAgent))
	w.startOperator()
	w.must(w.declareLost("mac-evil"))
	w.pass(10 * time.Minute)
	w.eventually("its silence is reported", func() error { return w.macCondition("mac-evil", v1alpha1.ReasonMacGone) })
	w.must(w.c.Delete(w.ctx, &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-evil"}}))
}

// writerAs applies the status of a Mac with the rights of its agent.
func (w *world) writerAs(mac string) func(s v1alpha1.MacNodeStatus, manager string) error {
	c := w.asMac(mac)
	return func(s v1alpha1.MacNodeStatus, manager string) error {
		return applied(w.ctx, c, mac, s, manager)
	}
}

// asMac is a client with the rights of a Mac's agent.
func (w *world) asMac(mac string) client.Client {
	as := rest.CopyConfig(env.Config())
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":mac-" + mac,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"}}
	c, err := client.New(as, client.Options{Scheme: controllers.Scheme()})
	w.must(err)
	w.eventually("its agent has its rights", func() error { return c.Get(w.ctx, client.ObjectKey{Name: mac}, &v1alpha1.MacNode{}) })
	return c
}

// TestAnAgentWritesItsStatusInOneWay: managedFields with the same fields twice, or with others than
// the status has, would make a MacNode too large to delete, or have a later apply of others remove their fields.
func TestAnAgentWritesItsStatusInOneWay(t *testing.T) {
	w := newWorld(t)
	evil := w.mac("mac-evil", holding(60*gib))
	w.eventually("it reports", func() error { return w.macCondition("mac-evil", v1alpha1.ReasonReporting) })
	evil.Stop()
	write, c := w.writerAs("mac-evil"), w.asMac("mac-evil")
	w.stop()
	entries := func() string {
		var mac v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, &mac))
		b, err := json.Marshal(mac.ManagedFields)
		w.must(err)
		return string(b)
	}
	w.eventually("the policy is in force", func() error {
		if err := write(v1alpha1.MacNodeStatus{BootID: "a"}, "other"); err == nil || !strings.Contains(err.Error(), "field manager") {
			return fmt.Errorf("another manager: %w", err)
		}
		return nil
	})
	w.must(write(v1alpha1.MacNodeStatus{BootID: "a"}, v1alpha1.ManagerAgent))
	for name, try := range w.otherWays(c) {
		before := entries()
		if err := try.do(); try.refused != "" && (err == nil || !strings.Contains(err.Error(), try.refused)) {
			t.Errorf("%s: %.400v, want %q", name, err, try.refused)
		}
		if after := entries(); before != after {
			t.Errorf("%s: managedFields are %.800s, were %s", name, after, before)
		}
	}
	w.must(w.c.Status().Patch(w.ctx, macNamed("mac-evil"), client.RawPatch(types.MergePatchType, []byte(`{"status":{"bootID":"b","chip":"c"}}`)), client.FieldOwner("kubectl-edit")))
	w.must(write(v1alpha1.MacNodeStatus{BootID: "d"}, v1alpha1.ManagerAgent)) // takes fields of a person
	w.must(w.c.Patch(w.ctx, macNamed("mac-evil"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`))))
	w.must(write(v1alpha1.MacNodeStatus{BootID: "e"}, v1alpha1.ManagerAgent))
	w.startOperator()
}

// otherWays are writes of a Mac's status that are no applies, with what refuses them. One that changes
// managedFields alone is ignored.
func (w *world) otherWays(c client.Client) map[string]otherWay {
	const one, ignored = "only by server-side apply", ""
	patch := func(text string) error {
		return c.Status().Patch(w.ctx, macNamed("mac-evil"), client.RawPatch(types.MergePatchType, []byte(text)), client.FieldOwner(v1alpha1.ManagerAgent))
	}
	with := func(change func([]metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry) func() error {
		return func() error {
			var mac v1alpha1.MacNode
			w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, &mac))
			b, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": change(mac.ManagedFields)}})
			w.must(err)
			return patch(string(b))
		}
	}
	fields := func(n int, format string) *metav1.FieldsV1 {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprintf(format, i)
		}
		return metav1.NewFieldsV1(`{"f:status":{"f:weights":{` + strings.Join(keys, ",") + `}}}`)
	}
	own := func(f *metav1.FieldsV1) func() error {
		return with(func(all []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
			for i := range all {
				if all[i].Manager == v1alpha1.ManagerAgent {
					all[i].FieldsV1 = f
				}
			}
			return all
		})
	}
	return map[string]otherWay{
		"an update": {func() error {
			var mac v1alpha1.MacNode
			w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-evil"}, &mac))
			mac.Status.Weights = large("0", 0, 0).Weights
			return c.Status().Update(w.ctx, &mac, client.FieldOwner(v1alpha1.ManagerAgent))
		}, one},
		"a patch": {func() error { return patch(`{"status":{"bootID":"b"}}`) }, one},
		"fields of others": {with(func(all []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
			return append(all, metav1.ManagedFieldsEntry{Manager: "x", Operation: "Apply", APIVersion: v1alpha1.GroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: fields(1, `"f:bootID%d":{}`)})
		}), ignored},
		"no fields of others": {with(func(all []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
			return slices.DeleteFunc(all, func(e metav1.ManagedFieldsEntry) bool { return e.Manager != v1alpha1.ManagerAgent })
		}), ignored},
		"no fields of its own": {with(func(all []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
			return slices.DeleteFunc(all, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == v1alpha1.ManagerAgent })
		}), ignored},
		"none at all": {func() error { return patch(`{"metadata":{"managedFields":[{}]}}`) }, ignored},
		"many fields": {own(fields(8000, `"f:%060d":{}`)), ignored},
		"costly ones": {own(fields(2000, `"f:%04d`+strings.Repeat("<", 60)+`":{}`)), ignored},
		"nested ones": {own(fields(1, `"f:%d":`+strings.Repeat(`{"f:a":`, 9)+"{}"+strings.Repeat("}", 9))), ignored},
	}
}

type otherWay struct {
	do      func() error
	refused string
}
