//go:build !race

package modeldeployment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// rehearsed returns a deployment of two replicas in a cluster without Macs.
func rehearsed() Rehearsal {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "u"}}
	d.Spec.Model.Source = "file://m.gguf"
	d.Spec.Replicas = ptr.To[int32](2)
	return Rehearsal{Now: time.Unix(1_800_000_000, 0), Deployment: d, Deployments: []v1alpha1.ModelDeployment{*d}}
}

func TestARehearsalNeverGuesses(t *testing.T) {
	r := rehearsed()
	o, err := r.Accept()
	if err != nil || o.Status != metav1.ConditionUnknown || o.Engine != nil {
		t.Fatalf("a source without inspection: %+v, %v", o, err)
	}
	if _, err := r.Step(o, nil); err == nil {
		t.Error("replicas were made of a model that is not known")
	}
}

func TestARehearsalMakesWhatAPassWould(t *testing.T) {
	r := rehearsed()
	record := fleettest.Model("file://m.gguf", "seed", 98_000_000)
	r.Record = &record
	o, err := r.Accept()
	if err != nil || o.Engine == nil {
		t.Fatalf("got %+v, %v", o, err)
	}
	step, err := r.Step(o, nil)
	create, remove := step.Create, step.Remove
	if err != nil || len(create) != 2 || len(remove) != 0 || create[0].Spec.Revision != o.Revision || create[0].Spec.ReservedBytes <= record.Bytes() {
		t.Fatalf("creates %+v, removes %v, %v", create, remove, err)
	}
	// The revision exists: the same name, and nothing more to create.
	raw, err := o.Engine.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.Revisions = []appsv1.ControllerRevision{{ObjectMeta: metav1.ObjectMeta{Name: "m-known"}, Data: runtime.RawExtension{Raw: raw}}}
	again, err := r.Accept()
	if err != nil || again.Revision != "m-known" {
		t.Fatalf("got %+v, %v", again, err)
	}
	for i := range create {
		create[i].Spec.Revision = again.Revision
	}
	if step, err = r.Step(again, create); err != nil || len(step.Create)+len(step.Remove) != 0 {
		t.Errorf("a settled deployment: creates %d, removes %d, %v", len(step.Create), len(step.Remove), err)
	}
}

func TestARehearsedNameConflictIsOneWithAnyRecord(t *testing.T) {
	r := rehearsed()
	older := *r.Deployment.DeepCopy()
	older.UID, older.Name = "older", "other"
	older.Spec.ServedNames, older.Status.ServedNames = []string{"m"}, []string{"m"}
	r.Deployment.CreationTimestamp = metav1.NewTime(r.Now)
	r.Deployments = append(r.Deployments, older)
	record := fleettest.Model("file://m.gguf", "seed", 98_000_000)
	r.Record = &record
	if o, err := r.Accept(); err != nil || o.Reason != v1alpha1.ReasonNameConflict || o.Engine != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestARehearsedLargeSpecIsRefusedWithAnyRecord(t *testing.T) {
	r := rehearsed()
	r.Deployment.Spec.ChatTemplate = strings.Repeat("x", 40<<10)
	record := fleettest.Model("file://m.gguf", "seed", 98_000_000)
	r.Record = &record
	if o, err := r.Accept(); err != nil || o.Reason != v1alpha1.ReasonSpecTooLarge || o.Engine != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

// TestANamespaceHasABoundedNumberOfNames: every gateway lists all of them.
func TestANamespaceHasABoundedNumberOfNames(t *testing.T) {
	r := rehearsed()
	record := fleettest.Model("file://m.gguf", "seed", 98_000_000)
	r.Record = &record
	other := *r.Deployment.DeepCopy()
	other.Name, other.UID, other.Spec.ServedNames = "other", "other", nil
	for i := range maxNames - 2 {
		other.Status.ServedNames = append(other.Status.ServedNames, fmt.Sprint("name-", i))
	}
	r.Deployments = append(r.Deployments, other)
	if o, err := r.Accept(); err != nil || o.Engine == nil {
		t.Errorf("a name that fits: %+v, %v", o, err)
	}
	r.Deployment.Spec.Adapters = nil
	r.Deployment.Spec.ServedNames = []string{"one", "two"}
	if o, err := r.Accept(); err != nil || o.Reason != v1alpha1.ReasonSpecTooLarge || !strings.Contains(o.Message, "would have 5001 names") {
		t.Errorf("a name too many: %+v, %v", o, err)
	}
	r.Deployment.Status.ServedNames = []string{"one", "three", "ns/d"}
	if o, err := r.Accept(); err != nil || o.Engine == nil {
		t.Errorf("as many names as it has: %+v, %v", o, err)
	}
	for i := range r.Deployments {
		if r.Deployments[i].Name == "other" {
			r.Deployments[i].Namespace = "elsewhere"
		}
	}
	r.Deployment.Status.ServedNames = nil
	if o, err := r.Accept(); err != nil || o.Engine == nil {
		t.Errorf("names of another namespace: %+v, %v", o, err)
	}
}
