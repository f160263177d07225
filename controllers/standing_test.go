//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// tools returns how kstatus, and so Flux and Helm, interpret an object.
func tools(o client.Object) kstatus.Status {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return kstatus.Status(err.Error())
	}
	result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		return kstatus.Status(err.Error())
	}
	return result.Status
}

// standings is the world seen by tools that read kstatus.
type standings struct{ *world }

// becomes waits until tools see a deployment in a state, with reasons of Ready and
// Available.
func (w standings) becomes(name string, want kstatus.Status, ready, available string) *v1alpha1.ModelDeployment {
	w.t.Helper()
	var d *v1alpha1.ModelDeployment
	w.eventually(fmt.Sprintf("%s is %s", name, want), func() error {
		d = w.get(name)
		if got := tools(d); got != want {
			return fmt.Errorf("it is %s: %s", got, brief(d))
		}
		return errors.Join(wantReason(d.Status.Conditions, v1alpha1.ConditionReady, ready), wantReason(d.Status.Conditions, v1alpha1.ConditionAvailable, available))
	})
	return d
}

// mistaken watches a deployment until it is stopped, and returns the times at which tools
// called it current although the spec was not served.
func (w standings) mistaken(name string) (stop func() []string) {
	w.t.Helper()
	watch, err := w.c.Watch(w.ctx, &v1alpha1.ModelDeploymentList{}, client.InNamespace(w.ns), client.MatchingFields{"metadata.name": name})
	w.must(err)
	found := make(chan []string, 1)
	go func() {
		var out []string
		for e := range watch.ResultChan() {
			d, ok := e.Object.(*v1alpha1.ModelDeployment)
			if !ok || tools(d) != kstatus.CurrentStatus {
				continue
			}
			s := d.Status
			if s.CurrentRevision == "" || s.CurrentRevision != s.UpdateRevision || s.UpdatedAvailableReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas ||
				!meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccepted) {
				out = append(out, brief(d))
			}
		}
		found <- out
	}()
	return func() []string {
		watch.Stop()
		return <-found
	}
}

// It covers a first start, a rollout, a halted one, and a missing source. Meanwhile no tool
// may see the new spec as served, while Available counts the old one.
func TestToolsWaitUntilTheCurrentSpecIsServed(t *testing.T) {
	w := standings{newWorld(t)}
	script := holding(60 * gib)
	spoilt(&script)
	w.mac("mac-1", script)
	created := w.deploy("small", nil)
	if got := tools(created); got != kstatus.InProgressStatus || created.Status.ObservedGeneration != -1 {
		t.Errorf("the API server answered a creation with %s, generation %d observed", got, created.Status.ObservedGeneration)
	}
	stop := w.mistaken("small")
	w.becomes("small", kstatus.CurrentStatus, v1alpha1.ReasonReady, v1alpha1.ReasonAvailable)

	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 1024 })
	w.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "-n", w.ns, "mdep/small")
	if !slices.ContainsFunc(w.replicas("small"), func(r v1alpha1.ModelReplica) bool {
		return r.Spec.Context.MaxTokens == 1024 && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)
	}) {
		t.Error("kubectl wait returned in the middle of the rollout")
	}
	w.becomes("small", kstatus.CurrentStatus, v1alpha1.ReasonReady, v1alpha1.ReasonAvailable)
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Context.MaxTokens = 512 })
	w.becomes("small", kstatus.FailedStatus, v1alpha1.ReasonHalted, v1alpha1.ReasonPreviousRevision)
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source = "file://missing.gguf" })
	w.becomes("small", kstatus.FailedStatus, v1alpha1.ReasonSourceNotFound, v1alpha1.ReasonPreviousRevision)
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Model.Source, s.Context.MaxTokens = source, 2048 })
	d := w.becomes("small", kstatus.CurrentStatus, v1alpha1.ReasonReady, v1alpha1.ReasonAvailable)
	for _, wrong := range stop() {
		t.Errorf("called current: %s", wrong)
	}
	w.wantEventsOf(d.UID, v1alpha1.ReasonHalted, v1alpha1.ReasonSourceNotFound)
	w.wantEventsOf(w.replicas("small")[0].UID, v1alpha1.ReasonPlaced, "Downloaded", v1alpha1.ReasonLoaded)
}

// wantEventsOf waits for one Event of each reason about an object.
func (w standings) wantEventsOf(uid any, reasons ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("Events %v", reasons), func() error {
		var events corev1.EventList
		if err := w.c.List(w.ctx, &events); err != nil {
			return err
		}
		found := map[string]int{}
		for _, e := range events.Items {
			if fmt.Sprint(e.InvolvedObject.UID) == fmt.Sprint(uid) {
				found[e.Reason]++
			}
		}
		for _, r := range reasons {
			if found[r] != 1 {
				return fmt.Errorf("%v, want one %s", found, r)
			}
		}
		return nil
	})
}

// The waiting deployment is not called stable; once the quota is raised, it continues.
func TestAQuotaIsToldInTheWordsOfTheAPIServer(t *testing.T) {
	w := standings{newWorld(t)}
	w.mac("mac-1", holding(60*gib))
	const counted = "count/modelreplicas.metalfleet.dev"
	of := func(n string) corev1.ResourceList { return corev1.ResourceList{counted: resource.MustParse(n)} }
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "models"}}
	// No quota controller runs here: the API server counts from a status that is written
	// once.
	limit := func(hard, used string) {
		w.eventually("the quota is "+hard, func() error {
			if err := client.IgnoreNotFound(w.c.Get(w.ctx, client.ObjectKeyFromObject(quota), quota)); err != nil {
				return err
			}
			quota.Spec.Hard = of(hard)
			if quota.UID == "" {
				if err := w.c.Create(w.ctx, quota); err != nil {
					return err
				}
			} else if err := w.c.Update(w.ctx, quota); err != nil {
				return err
			}
			quota.Status = corev1.ResourceQuotaStatus{Hard: of(hard), Used: of(used)}
			return w.c.Status().Update(w.ctx, quota)
		})
	}
	limit("1", "0")
	w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](2) })
	d := w.becomes("small", kstatus.FailedStatus, v1alpha1.ReasonCreateFailed, v1alpha1.ReasonAvailable)
	for kind, want := range map[string]metav1.ConditionStatus{v1alpha1.ConditionProgressing: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionTrue, v1alpha1.ConditionStalled: metav1.ConditionTrue} {
		c := meta.FindStatusCondition(d.Status.Conditions, kind)
		if c.Status != want || c.Reason != v1alpha1.ReasonCreateFailed || !strings.Contains(c.Message, "exceeded quota: models") {
			t.Errorf("%+v, want %s with the sentence of the API server", c, want)
		}
	}
	w.wantEventsOf(d.UID, v1alpha1.ReasonCreateFailed)
	limit("2", "1")
	w.edit("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.DrainSeconds = ptr.To[int32](2) }) // before its own retry
	w.becomes("small", kstatus.CurrentStatus, v1alpha1.ReasonReady, v1alpha1.ReasonAvailable)
}

// As kubectl prints them.
func TestColumnsSayWhatAPersonLooksFor(t *testing.T) {
	w := standings{newWorld(t)}
	w.mac("mac-1", holding(60*gib))
	w.deploy("small", nil)
	w.deploy("large", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("90Gi") })
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.deployment("large", v1alpha1.ConditionReady, v1alpha1.ReasonTooLarge)
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	w.change(mac, func() { mac.Spec.Unschedulable = true })
	large, small := w.replicas("large")[0].Name, w.replicas("small")[0].Name
	w.eventually("the replicas have a status", func() error {
		for name, reason := range map[string]string{"large": v1alpha1.ReasonTooLarge, "small": v1alpha1.ReasonReady} {
			if err := wantReason(w.replicas(name)[0].Status.Conditions, v1alpha1.ConditionReady, reason); err != nil {
				return err
			}
		}
		return nil
	})
	rows := map[string]string{}
	for line := range strings.Lines(w.kubectl("get", "mdep,mr,mac", "-n", w.ns, "-o", "wide")) {
		if f := strings.Fields(line); len(f) > 0 {
			rows[f[0]] += strings.Join(f, " ") + "\n"
		}
	}
	for name, want := range map[string]string{
		"modeldeployment.metalfleet.dev/small": source + " 1/1 1 1 1 Ready 152.3 MiB 0 ",
		"modeldeployment.metalfleet.dev/large": source + " 0/1 1 0 0 TooLarge 0 0 ",
		"modelreplica.metalfleet.dev/" + small: "small mac-1 True Ready 0 Serving 152.3 MiB ",
		"modelreplica.metalfleet.dev/" + large: "large False TooLarge 0 0 90.0 GiB 0 ",
		"macnode.metalfleet.dev/mac-1":         "True Reporting true M2Ultra ",
	} {
		if !strings.HasPrefix(rows[name], name+" "+want) {
			t.Errorf("%q, want %q", rows[name], want)
		}
	}
	wantContains(t, "headers", rows["NAME"], "READY UP-TO-DATE AVAILABLE LOADED STATUS MEMORY FREED AGE", "READY STATUS RESTARTS PROGRESS MEMORY RESERVED FREED AGE", "READY STATUS CORDONED CHIP")

	// A replica that never had a Mac freed nothing.
	last := w.watchReplica(large)
	w.edit("large", func(s *v1alpha1.ModelDeploymentSpec) { s.Replicas = ptr.To[int32](0) })
	if got := last().Status.Summary.Freed; got != "0" {
		t.Errorf("freed %q by a replica that was never placed", got)
	}
}
