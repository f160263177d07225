//go:build !race

package controllers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestTaintsAndTolerationsAreValidated(t *testing.T) {
	s := newSchema(t)
	for name, tc := range map[string]struct{ taints, tolerations, sentence string }{
		"a taint of each effect":         {taints: "[{key: example.com/desk, value: a-1, effect: NoSchedule}, {key: desk, effect: PreferNoSchedule}, {key: desk, effect: NoExecute}]"},
		"a taint without an effect":      {taints: "[{key: desk}]", sentence: "Required value"},
		"a taint of another effect":      {taints: "[{key: desk, effect: NoWay}]", sentence: "Unsupported value"},
		"a taint without a key":          {taints: "[{key: '', effect: NoSchedule}]", sentence: "taints[0].key"},
		"a taint whose key is no name":   {taints: "[{key: 'a b', effect: NoSchedule}]", sentence: "the key of a taint must be a label name"},
		"a taint whose value is no word": {taints: "[{key: desk, value: 'a b', effect: NoSchedule}]", sentence: "the value of a taint must be a valid label value"},
		"a taint twice":                  {taints: "[{key: desk, value: a, effect: NoSchedule}, {key: desk, value: b, effect: NoSchedule}]", sentence: "Duplicate value"},
		"the time of a taint":            {taints: "[{key: desk, effect: NoExecute, timeAdded: '2030-01-01T00:00:00Z'}]", sentence: "unknown field"},
		"tolerations of each kind":       {tolerations: "[{key: desk}, {key: desk, value: a}, {key: desk, operator: Equal, value: a, effect: NoSchedule}, {operator: Exists}, {key: desk, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]"},
		"a toleration of nothing":        {tolerations: "[{}]", sentence: "a toleration without key requires operator Exists"},
		"a value of every key":           {tolerations: "[{operator: Equal, value: a}]", sentence: "a toleration without key requires operator Exists"},
		"a value that exists":            {tolerations: "[{key: desk, operator: Exists, value: a}]", sentence: "operator Exists takes no value"},
		"an unknown operator":            {tolerations: "[{key: desk, operator: Gt, value: '3'}]", sentence: "Unsupported value"},
		"an unknown effect":              {tolerations: "[{key: desk, effect: Never}]", sentence: "Unsupported value"},
		"seconds without an effect":      {tolerations: "[{key: desk, tolerationSeconds: 5}]", sentence: "tolerationSeconds requires effect: NoExecute"},
		"seconds of another effect":      {tolerations: "[{key: desk, effect: NoSchedule, tolerationSeconds: 5}]", sentence: "tolerationSeconds requires effect: NoExecute"},
		"seconds below zero":             {tolerations: "[{key: desk, effect: NoExecute, tolerationSeconds: -1}]", sentence: "greater than or equal to 0"},
		"a key that is no name":          {tolerations: "[{key: 'a b', operator: Exists}]", sentence: "the key of a toleration must be a label name"},
		"a value that is no word":        {tolerations: "[{key: desk, value: 'a b'}]", sentence: "the value of a toleration must be a valid label value"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: MacNode\nmetadata: {name: m}\nspec: {taints: " + tc.taints + "}")
			if tc.taints == "" {
				u = sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: d}\nspec: {model: {source: 'file://a'}, placement: {tolerations: " + tc.tolerations + "}}")
			}
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}

// The replica of one deployment leaves at once, that of the second after its
// tolerationSeconds, over a restart of the operator, and that of the third stays.
func TestReplicasLeaveATaintedMac(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	first := map[string][]v1alpha1.Toleration{
		"at-once": nil,
		"later":   {{Key: "repair", Effect: corev1.TaintEffectNoExecute, Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](300)}},
		"never":   {{Key: "repair", Operator: corev1.TolerationOpExists}},
	}
	before := map[string]string{}
	for name, tolerations := range first {
		w.deploy(name, func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.Tolerations = tolerations })
		w.deployment(name, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
		before[name] = w.replicas(name)[0].Name
	}
	w.mac("mac-2", holding(60*gib))
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	w.change(mac, func() {
		mac.Spec.Taints = []v1alpha1.Taint{{Key: "repair", Value: "fan", Effect: corev1.TaintEffectNoExecute}}
	})

	moved := func(name string) error {
		r, err := alone(w.replicas(name))
		switch {
		case err != nil:
			return err
		case r.Name == before[name] || r.Spec.NodeName != "mac-2":
			return fmt.Errorf("%s is on %q, before it was %s", r.Name, r.Spec.NodeName, before[name])
		}
		return wantReason(r.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	}
	w.eventually("what does not tolerate the taint is moved", func() error { return moved("at-once") })
	w.eventually("what tolerates it for a while has the condition", func() error {
		r, err := alone(w.replicas("later"))
		if err != nil {
			return err
		}
		if m := message(r.Status.Conditions, v1alpha1.ConditionEvicting); !contains(m, "repair=fan") || !contains(m, "300 s") {
			return errors.New("message " + m)
		}
		return wantReason(r.Status.Conditions, v1alpha1.ConditionEvicting, v1alpha1.ReasonTainted)
	})
	w.pass(200 * time.Second)
	w.stop()
	w.startOperator()
	w.pass(60 * time.Second)
	if err := moved("later"); err == nil {
		t.Error("it was moved after 260 s and tolerates the taint for 300 s")
	}
	w.pass(60 * time.Second)
	later, err := alone(w.replicas("later"))
	w.must(err)
	w.wake(later) // its timer, of 40 s, is not of the operator's clock
	w.eventually("after 320 s it is moved", func() error { return moved("later") })
	r, err := alone(w.replicas("never"))
	w.must(err)
	if r.Name != before["never"] || meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionEvicting) != nil {
		t.Errorf("%s tolerates the taint for ever: %+v", r.Name, r.Status.Conditions)
	}
	if n := eventsOf(w, v1alpha1.ReasonTainted, "mac-1"); n != 2 {
		t.Errorf("%d Events report that a replica leaves a tainted Mac, want 2", n)
	}
}

// eventsOf counts the Events of the namespace with a reason and a part of the message.
func eventsOf(w *world, reason, part string) (n int) {
	w.t.Helper()
	var events corev1.EventList
	w.must(w.c.List(w.ctx, &events, client.InNamespace(w.ns)))
	for _, e := range events.Items {
		if e.Reason == reason && strings.Contains(e.Message, part) {
			n++
		}
	}
	return n
}

// The end of a taint ends what it began: a later one is tolerated for its whole time.
func TestATaintThatIsRemovedEvictsNothing(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("chat", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Placement.Tolerations = []v1alpha1.Toleration{{Key: "repair", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)}}
	})
	w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	before := w.replicas("chat")[0].UID
	evicting := func() *metav1.Condition {
		r, err := alone(w.replicas("chat"))
		w.must(err)
		return meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionEvicting)
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	for range 2 {
		w.change(mac, func() { mac.Spec.Taints = []v1alpha1.Taint{{Key: "repair", Effect: corev1.TaintEffectNoExecute}} })
		w.eventually("the taint is noticed", func() error {
			if evicting() == nil {
				return errors.New("no condition Evicting")
			}
			return nil
		})
		w.pass(200 * time.Second)
		w.change(mac, func() { mac.Spec.Taints = nil })
		w.eventually("its end is noticed", func() error {
			if evicting() != nil {
				return errors.New("it is still Evicting")
			}
			return nil
		})
	}
	w.pass(200 * time.Second)
	if r, err := alone(w.replicas("chat")); err != nil || r.UID != before {
		t.Errorf("another replica: %v", err)
	}
}
