//go:build !race

package macclass

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestAMacFollowsItsClassOnceItRunsWithAllOfIt(t *testing.T) {
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: "studio", Generation: 3}}
	for name, tc := range map[string]struct {
		named  string
		class  *v1alpha1.MacClass
		runs   v1alpha1.SettingsInForce
		reason string // "": the Mac has no class
	}{
		"no class":                {},
		"a class that is missing": {named: "studio", reason: v1alpha1.ReasonClassNotFound},
		"nothing is reported":     {class: class, reason: v1alpha1.ReasonClassPending},
		"another class":           {class: class, runs: v1alpha1.SettingsInForce{Class: "lab", ClassGeneration: 3}, reason: v1alpha1.ReasonClassPending},
		"an older generation":     {class: class, runs: v1alpha1.SettingsInForce{Class: "studio", ClassGeneration: 2}, reason: v1alpha1.ReasonClassPending},
		"a setting is refused":    {class: class, runs: v1alpha1.SettingsInForce{Class: "studio", ClassGeneration: 3, Message: "no"}, reason: v1alpha1.ReasonSettingsRefused},
		"a setting has to wait":   {class: class, runs: v1alpha1.SettingsInForce{Class: "studio", ClassGeneration: 3, RestartRequired: []string{"modelRoot"}}, reason: v1alpha1.ReasonRestartRequired},
		"all of it":               {class: class, runs: v1alpha1.SettingsInForce{Class: "studio", ClassGeneration: 3}, reason: v1alpha1.ReasonClassApplied},
	} {
		mac := &v1alpha1.MacNode{Spec: v1alpha1.MacNodeSpec{Class: tc.named}, Status: v1alpha1.MacNodeStatus{Settings: tc.runs}}
		got := judge(mac, tc.class)
		if got.Reason != tc.reason || (got.Status == "True") != (tc.reason == v1alpha1.ReasonClassApplied) {
			t.Errorf("%s: %s %s (%s), want %s", name, got.Status, got.Reason, got.Message, tc.reason)
		}
	}
}
